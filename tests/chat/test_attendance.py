"""A connection's place at a run is given back in good order, however its request ends."""

import asyncio
from types import SimpleNamespace

import pytest

from chat.attendance import Attendance
from chat.presence import Kind, Presence
from runs import operations


async def test_c24_a_request_that_is_cancelled_twice_lets_go_of_what_it_follows(monkeypatch):
    """To let go of a feed takes a moment while Redis is away. The client went, and now the server leaves."""
    following, letting_go, may_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def follow_run(*_):
        try:
            following.set()
            yield await asyncio.Event().wait()
        finally:
            letting_go.set()
            await may_go.wait()

    async def attend():
        async for _ in Attendance(login, Presence(Kind.STREAM, login), "run").events():
            pass

    monkeypatch.setattr(operations, "follow_run", follow_run)
    login = SimpleNamespace(user=None)
    request = asyncio.create_task(attend())
    await following.wait()
    request.cancel()
    await letting_go.wait()
    request.cancel()
    await asyncio.sleep(0)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await request
