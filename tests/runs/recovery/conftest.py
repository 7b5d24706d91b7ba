"""Servers that can be lost, and a stage whose agent runs on them."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runs.servers import Servers, servers_of_a_test
from tests.runs.stage import Stage, open_stage

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends every hanging tool when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def servers(transactional_db: None) -> AsyncIterator[Servers]:
    async with servers_of_a_test() as started:
        yield started


@pytest.fixture
async def stage(
    servers: Servers, alice: "User", serve: Callable[..., None], tmp_path: Path, release: threading.Event
) -> AsyncIterator[Stage]:
    async with open_stage(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened
