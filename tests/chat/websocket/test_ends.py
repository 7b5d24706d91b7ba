"""However a socket ends, nothing stays behind, and nothing else ends with it."""

import asyncio
import logging
from uuid import UUID

import pytest
from django.db import OperationalError

from chat.access import open_connections
from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.live import follow
from runs.models import Run
from tests.chat.live import PATIENT, Socket, bearer, call, eventually, socket
from tests.chat.websocket.handshakes import UNKNOWN

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_socket_that_closes_ends_nothing(engine, model, held, alice, session):
    async with socket(alice, session) as client:
        run = (await client.ask("turn.start", input="hello"))["result"]["id"]
        await held.reached()
    held.open()
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status="completed").exists))


async def test_a_failing_send_ends_the_socket_and_nothing_else(engine, model, held, alice, session, caplog):
    before = tasks()
    async with socket(alice, session) as good:
        await good.until("session.state_changed")
        with_good = tasks()
        vanished = [await vanish(alice, session, after=number % 4) for number in range(20)]
        await good.ask("turn.start", input="hello")
        await held.reached()
        held.open()
        await good.event("run.completed")
        await asyncio.wait(vanished, timeout=PATIENT)
        assert all(task.done() and task.exception() is None for task in vanished)
        assert open_connections.count()[open_connections.Kind.SOCKET] == 1
        assert this_process.engine.hub.followers == 1
        await eventually(lambda: tasks() <= with_good)
    await eventually(lambda: this_process.engine.hub.followers == 0)
    await eventually(lambda: tasks() <= before | {"watch logins"})
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_fault_in_a_handler_closes_with_1011_and_cleans_up(
    engine, alice, session, monkeypatch, caplog
):
    def broken(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr(operations, "start_turn", broken)
    async with socket(alice, session) as client:
        await client.say("turn.start", request_id=UNKNOWN, input="x")
        assert await client.closed() == 1011
    assert open_connections.count()[open_connections.Kind.SOCKET] == 0
    await eventually(lambda: this_process.engine.hub.followers == 0)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


@pytest.mark.parametrize("where", ["following", "a command", "the end of a cancel"])
async def test_while_the_database_is_unavailable_a_socket_is_closed_with_1013(
    engine, model, held, alice, session, where, monkeypatch, caplog
):
    async with socket(alice, session) as client:
        await client.until("session.state_changed")
        await client.ask("turn.start", input="hello")
        await held.reached()
        caplog.clear()
        if where == "following":
            monkeypatch.setattr(follow, "_read_session", unavailable)
            next(iter(this_process.engine.hub._sessions[UUID(session)])).suspect_loss()
        elif where == "a command":
            monkeypatch.setattr(operations, "cancel_session", unavailable)
            await client.say("agent.cancel", session_id=session)
        else:
            monkeypatch.setattr(follow, "_cancellation", unavailable)
            await client.say("agent.cancel", session_id=session)
        assert await client.closed() == 1013
    assert open_connections.count()[open_connections.Kind.SOCKET] == 0
    await eventually(lambda: this_process.engine.hub.followers == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_socket_that_the_server_kills_cleans_up(engine, alice, session):
    client = Socket(f"/ws/sessions/{session}/", await bearer(alice))
    await client.connect(PATIENT)
    await client.until("session.state_changed")
    client.future.cancel()
    await asyncio.wait([client.future])
    assert open_connections.count()[open_connections.Kind.SOCKET] == 0
    await eventually(lambda: this_process.engine.hub.followers == 0)


async def test_a_deleted_session_is_said_to_be_gone(engine, model, alice, session):
    async with socket(alice, session) as client, socket(alice) as overview:
        await client.until("session.state_changed")
        assert (await call(alice, "DELETE", f"sessions/{session}/")).status == 204
        assert await client.until("session.deleted") == {"type": "session.deleted", "id": session}
        assert await client.closed() == 1000
        assert await overview.until("session.deleted") == {"type": "session.deleted", "id": session}


async def test_a_server_without_its_engine_closes_with_1012(alice, session):
    async with socket(alice, session) as client, socket(alice) as overview:
        assert await client.closed() == 1012
        assert await overview.closed() == 1012


async def test_a_server_that_shuts_down_closes_with_1012(engine, alice, session):
    async with socket(alice, session) as client, socket(alice) as overview:
        open_connections.end_all()
        assert await client.closed() == 1012
        assert await overview.closed() == 1012


def tasks() -> set[str]:
    """The names of this loop's tasks but for the one that asks."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


async def vanish(user, session: str, after: int) -> asyncio.Task[None]:
    """A client whose connection breaks after so many frames, so that the next send raises."""
    from tests.chat.live import application

    received = 0

    async def receive():
        if received == 0:
            return {"type": "websocket.connect"}
        return await asyncio.Event().wait()  # the server learns of the break by its send alone

    async def send(message):
        nonlocal received
        received += 1
        if received > after + 1:
            raise ConnectionResetError("reset by peer")

    headers = [
        (name.encode(), value.encode())
        for name, value in {**await bearer(user), "host": "testserver"}.items()
    ]
    scope = {"type": "websocket", "path": f"/ws/sessions/{session}/", "query_string": b"", "headers": headers}
    return asyncio.create_task(application()(scope, receive, send), name="vanishing")


def unavailable(*args, **options):
    raise OperationalError("the server closed the connection unexpectedly")
