"""Servers that can be lost, and a harness whose agent runs on them."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runs.harness import Harness, open_harness
from tests.runs.servers import Servers, servers_of_a_test

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
async def harness(
    servers: Servers, alice: "User", serve: Callable[..., None], tmp_path: Path, release: threading.Event
) -> AsyncIterator[Harness]:
    async with open_harness(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened
