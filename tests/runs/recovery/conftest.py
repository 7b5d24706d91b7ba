"""Servers that can be lost, and a stage whose agent runs on them."""

import threading

import pytest

from tests.runs.servers import servers_of_a_test
from tests.runs.stage import open_stage


@pytest.fixture
def release():
    """Ends every hanging tool when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def servers(transactional_db):
    async with servers_of_a_test() as started:
        yield started


@pytest.fixture
async def stage(servers, alice, serve, tmp_path, release):
    async with open_stage(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened
