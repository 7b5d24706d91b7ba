"""A connection to a run is closed properly, however its request ends."""

import asyncio
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError

from chat.access import open_connections, run_connections
from chat.access.logins import Login
from chat.access.open_connections import Kind, OpenConnection
from chat.access.run_connections import RunConnection
from runs import operations
from runs.errors import DatabaseUnavailable
from tests.chat.live import eventually


async def test_a_request_that_is_cancelled_twice_lets_go_of_what_it_follows(monkeypatch):
    """The client disconnects, and then the server shuts down. Redis does not answer meanwhile."""
    following, letting_go, may_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def follow_run(*_):
        try:
            following.set()
            yield await asyncio.Event().wait()
        finally:
            letting_go.set()
            await may_go.wait()

    async def follow():
        async for _ in RunConnection(login, OpenConnection(Kind.STREAM, login), "run").events():
            pass

    monkeypatch.setattr(operations, "follow_run", follow_run)
    login = SimpleNamespace(user=None)
    request = asyncio.create_task(follow())
    await following.wait()
    request.cancel()
    await letting_go.wait()
    request.cancel()
    await asyncio.sleep(0)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_an_unavailable_database_is_no_disconnect(monkeypatch):
    async def follow_run(*_):
        yield "a change of the session"
        raise OperationalError("the server closed the connection unexpectedly")

    cancelled = []
    monkeypatch.setattr(operations, "follow_run", follow_run)
    monkeypatch.setattr(operations, "cancel_run", lambda *of, **how: cancelled.append(of))
    login = SimpleNamespace(user=None)
    connection = RunConnection(login, OpenConnection(Kind.STREAM, login), "run", cancel_on_close=True)
    with pytest.raises(DatabaseUnavailable):
        async for _ in connection.events():
            pass
    connection.close()
    assert not run_connections._cancelling
    assert cancelled == []


async def test_a_disconnect_while_the_database_is_unavailable_still_cancels_the_run(monkeypatch):
    asked = []

    async def in_thread(cancel, user, run_id, **how):
        asked.append((cancel, run_id))
        if len(asked) < 3:
            raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(run_connections, "in_thread", in_thread)
    monkeypatch.setattr(run_connections, "_RETRY_AFTER", 0.01)
    login = SimpleNamespace(user=None)
    RunConnection(login, OpenConnection(Kind.STREAM, login), "run", cancel_on_close=True).close()
    await eventually(lambda: not run_connections._cancelling)
    assert asked == [(operations.cancel_run, "run")] * 3


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_request_that_ends_before_its_body_begins_closes_its_connection(swallows):
    """Django passes a cancel on while it makes a response, and swallows it while it sends one."""
    connected = asyncio.Event()

    async def respond():
        RunConnection(login, open_connections.register(Kind.STREAM, login), "run").close_if_cancelled()
        connected.set()
        with suppress(asyncio.CancelledError) if swallows else nullcontext():
            await asyncio.Event().wait()

    login = Login(get_user_model()(pk=1))
    request = asyncio.create_task(respond())
    await connected.wait()
    request.cancel()
    await asyncio.wait({request})
    assert request.cancelled() is not swallows
    assert open_connections.count()[Kind.STREAM] == 0
