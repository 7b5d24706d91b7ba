"""On PostgreSQL the run's row is the fence, and a broken connection costs no write."""

import asyncio
import random
import uuid
from unittest import mock

import psycopg
import pytest
from django.db import connections
from langgraph.checkpoint.conformance.test_utils import (
    generate_config,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from runs.errors import Fenced
from runs.memory.checkpoints import Checkpoints
from runs.memory.checkpoints.postgres import PostgresStorage
from tests.runs.memory.stores import ALIAS, LIMIT, put, stored


@pytest.mark.parametrize("change", ["status = 'cancelled'", "status = 'waiting'", "claim = 2"])
async def test_on_postgresql_the_run_itself_is_the_fence(shared, database, change):
    """Nobody tells the saver anything; another process has changed the run."""
    run = shared.new_run()
    saver = shared.checkpoints.fenced(run, 1, "turn")
    coroutine, config = put(saver, str(uuid.uuid4()), words="a")
    await coroutine
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        await other.execute(
            f"UPDATE runs_run SET {change}, finished_at = %s WHERE id = %s",
            ("2026-01-01T00:00:00Z" if "cancelled" in change else None, run),
        )
    for late in (
        put(saver, config["configurable"]["thread_id"], words="late")[0],
        saver.aput_writes(config, [("words", "late")], "task"),
        saver.adelete_thread(config["configurable"]["thread_id"]),
        saver.aprune([config["configurable"]["thread_id"]], strategy="delete"),
    ):
        with pytest.raises(Fenced):
            await late
    assert await stored(saver, config) == {}
    assert (
        len([found async for found in saver.alist(generate_config(config["configurable"]["thread_id"]))]) == 1
    )


async def test_on_postgresql_no_write_is_committed_after_the_terminal_status(shared, database):
    """Writes race with the change of status; at its commit all the writes that ever will be are there."""
    chance = random.Random(7)
    for _ in range(60):
        run = shared.new_run()
        saver = shared.checkpoints.fenced(run, 1, "turn")
        thread = str(uuid.uuid4())
        accepted = []
        enough, enough_written = chance.randrange(12), asyncio.Event()

        async def write(
            saver=saver, thread=thread, accepted=accepted, enough=enough, enough_written=enough_written
        ):
            for number in range(50):
                coroutine, config = put(saver, thread, words=str(number))
                try:
                    await coroutine
                except Fenced:
                    return
                accepted.append(config["configurable"]["checkpoint_id"])
                if len(accepted) > enough:
                    enough_written.set()

        count = "SELECT count(*) FROM checkpoints WHERE thread_id = %s"
        writers = [asyncio.create_task(write()) for _ in range(3)]
        await enough_written.wait()
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            async with other.transaction():
                await other.execute("SELECT 1 FROM runs_run WHERE id = %s FOR UPDATE", (run,))
                await other.execute(
                    "UPDATE runs_run SET status = 'completed', finished_at = now() WHERE id = %s", (run,)
                )
                (at_the_end,) = await (await other.execute(count, (thread,))).fetchone()
            await asyncio.gather(*writers)
            (finally_there,) = await (await other.execute(count, (thread,))).fetchone()
        assert at_the_end == finally_there == len(accepted)


async def test_on_postgresql_a_write_lets_event_batches_pass(shared, database):
    """The lock of a write does not conflict with that of the event writer (FOR NO KEY UPDATE)."""
    run = shared.new_run()
    saver = shared.checkpoints.fenced(run, 1, "turn")
    async with await psycopg.AsyncConnection.connect(database) as batch:
        await batch.execute("SELECT 1 FROM runs_run WHERE id = %s FOR NO KEY UPDATE", (run,))
        await batch.execute("UPDATE runs_run SET last_seq = 5 WHERE id = %s", (run,))
        task = asyncio.create_task(put(saver, str(uuid.uuid4()), words="a")[0])
        done, _ = await asyncio.wait([task], timeout=LIMIT)
        assert done
        await task


async def test_on_postgresql_a_lock_that_is_never_released_fails_the_write(shared, database, monkeypatch):
    """A frozen process may hold the run's row; the execution must still come to an end."""
    run = shared.new_run()
    monkeypatch.setitem(connections.settings[ALIAS]["OPTIONS"], "options", "-c lock_timeout=50ms")
    checkpoints = Checkpoints(await PostgresStorage.open(ALIAS))
    coroutine, config = put(checkpoints.fenced(run, 1, "turn"), str(uuid.uuid4()), words="a")
    async with await psycopg.AsyncConnection.connect(database) as frozen:
        await frozen.execute("SELECT 1 FROM runs_run WHERE id = %s FOR UPDATE", (run,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await coroutine
    assert await checkpoints.reader().aget_tuple(config) is None
    await checkpoints.close()


async def test_a_connection_that_died_while_idle_costs_no_write(shared, database):
    saver = shared.saver()
    thread = str(uuid.uuid4())
    await asyncio.gather(*(put(saver, thread, words="a")[0] for _ in range(5)))
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> %s"
    )
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
        await other.execute(end, (other.info.backend_pid,))
        await put(saver, thread, words="b")[0]  # meets one dead connection after the other
        assert len([found async for found in saver.alist(generate_config(thread))]) == 6


async def test_a_connection_that_breaks_in_the_middle_costs_no_write(shared, database):
    saver = shared.saver()
    thread = str(uuid.uuid4())
    coroutine, config = put(saver, thread, words="a")
    broken = []
    original = AsyncPostgresSaver.aput

    async def aput(self, *args):
        if not broken:
            broken.append(self.conn.info.backend_pid)
            async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
                await other.execute("SELECT pg_terminate_backend(%s, 5000)", broken)
        return await original(self, *args)

    with mock.patch.object(AsyncPostgresSaver, "aput", aput):
        await coroutine
    assert broken
    assert await saver.aget_tuple(config) is not None
