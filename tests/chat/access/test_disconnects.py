"""A connection's place at a run is given back in good order, however its request ends."""

import asyncio
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError

from chat.access import disconnects, open_connections
from chat.access.disconnects import Attendance
from chat.access.logins import Login
from chat.access.open_connections import Kind, Presence
from runs import operations
from runs.errors import DatabaseAway
from tests.chat.live import eventually


async def test_a_request_that_is_cancelled_twice_lets_go_of_what_it_follows(monkeypatch):
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


async def test_a_database_that_is_away_is_no_disconnect(monkeypatch):
    async def follow_run(*_):
        yield "a change of the session"
        raise OperationalError("the server closed the connection unexpectedly")

    cancelled = []
    monkeypatch.setattr(operations, "follow_run", follow_run)
    monkeypatch.setattr(operations, "cancel_run", lambda *of, **how: cancelled.append(of))
    login = SimpleNamespace(user=None)
    attending = Attendance(login, Presence(Kind.STREAM, login), "run", cancels=True)
    with pytest.raises(DatabaseAway):
        async for _ in attending.events():
            pass
    attending.close()
    assert not disconnects._leaving
    assert cancelled == []


async def test_who_leaves_while_the_database_is_away_still_takes_the_run_along(monkeypatch):
    asked = []

    async def in_thread(cancel, user, run_id, **how):
        asked.append((cancel, run_id))
        if len(asked) < 3:
            raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(disconnects, "in_thread", in_thread)
    monkeypatch.setattr(disconnects, "_ASK_AGAIN", 0.01)
    login = SimpleNamespace(user=None)
    Attendance(login, Presence(Kind.STREAM, login), "run", cancels=True).close()
    await eventually(lambda: not disconnects._leaving)
    assert asked == [(operations.cancel_run, "run")] * 3


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_request_that_ends_before_its_body_begins_gives_its_place_back(swallows):
    """Django passes a cancel on while it makes a response, and swallows it while it sends one."""
    attended = asyncio.Event()

    async def respond():
        Attendance(login, open_connections.enter(Kind.STREAM, login), "run").close_if_cancelled()
        attended.set()
        with suppress(asyncio.CancelledError) if swallows else nullcontext():
            await asyncio.Event().wait()

    login = Login(get_user_model()(pk=1))
    request = asyncio.create_task(respond())
    await attended.wait()
    request.cancel()
    await asyncio.wait({request})
    assert request.cancelled() is not swallows
    assert open_connections.count()[Kind.STREAM] == 0
