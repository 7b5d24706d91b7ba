"""A write is there as a whole or not at all, whatever is cancelled or fails."""

import asyncio
import random
import sqlite3
import uuid
from unittest import mock

import pytest
from langgraph.checkpoint.conformance.test_utils import (
    generate_config,
)

from tests.runs.memory.stores import put, stored


async def cancel_soon(chance, task):
    """Cancel ``task`` after a random while: before its first step, in the middle, or behind its end."""
    if chance.random() < 0.5:
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(chance.random() * 0.01)
    task.cancel()
    await asyncio.wait([task])


async def test_a_cancelled_write_is_wholly_there_or_not_at_all(store):
    chance = random.Random(4)
    saver, other = store.saver(), store.saver()
    reader = store.checkpoints.reader()
    cut = 0
    for number in range(240):
        thread = str(uuid.uuid4())
        coroutine, config = put(saver, thread, words=["a" * 2000], more={"b": number})
        task = asyncio.create_task(coroutine)
        await cancel_soon(chance, task)
        found = await reader.aget_tuple(config)
        if found is not None:
            assert found.checkpoint["channel_values"] == {"words": ["a" * 2000], "more": {"b": number}}
        else:
            assert task.cancelled()
            await put(saver, thread, words="again")[0]
            config = (await reader.aget_tuple(generate_config(thread))).config
        cut += task.cancelled()

        writes = [(f"channel{index}", f"{number}-{index}") for index in range(20)]
        task = asyncio.create_task(saver.aput_writes(config, writes, "task"))
        await cancel_soon(chance, task)
        assert len(await stored(reader, config)) in (0, 20)
        cut += task.cancelled()

        if number % 8 == 0:
            await put(other, str(uuid.uuid4()), words="unharmed")[0]
    assert 100 < cut < 480  # on either side of the writes, too


async def test_a_cancelled_sqlite_write_leaves_no_transaction_open(sqlite, tmp_path):
    chance = random.Random(5)
    saver = sqlite.saver()
    writer = sqlite.checkpoints._storage._writer.conn
    with sqlite3.connect(tmp_path / "checkpoints.sqlite3", timeout=0) as stranger:
        for number in range(250):
            coroutine, config = put(saver, str(uuid.uuid4()), words=["a" * 2000])
            if number % 2:
                await coroutine
                coroutine = saver.aput_writes(config, [("words", "b"), ("words", "c")], "task")
            await cancel_soon(chance, asyncio.create_task(coroutine))
            assert not writer.in_transaction
            # Somebody else gets the write lock at once, so it is free.
            stranger.execute("BEGIN IMMEDIATE")
            stranger.rollback()
    stranger.close()


async def test_the_cancel_goes_on_only_when_the_write_has_ended(store):
    saver = store.saver()
    coroutine, config = put(saver, str(uuid.uuid4()), words="a")
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)  # it has begun
    for _ in range(3):  # however often it is told
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.checkpoints.reader().aget_tuple(config) is not None


async def test_a_failed_write_is_rolled_back_alone(sqlite):
    """A write fails at its commit while another waits for its turn: the first is gone, the other is there."""
    saver, other = sqlite.saver(), sqlite.saver()
    connection = sqlite.checkpoints._storage._writer.conn
    commit = connection.commit
    failed = []

    async def fail_once():
        if not failed:
            failed.append(connection.in_transaction)
            raise sqlite3.OperationalError("disk I/O error")
        await commit()

    first, first_config = put(saver, str(uuid.uuid4()), words="a")
    second, second_config = put(other, str(uuid.uuid4()), words="b")

    with mock.patch.object(connection, "commit", fail_once):
        results = await asyncio.gather(first, second, return_exceptions=True)

    assert failed == [True]
    assert isinstance(results[0], sqlite3.OperationalError)
    assert not connection.in_transaction
    reader = sqlite.checkpoints.reader()
    assert await reader.aget_tuple(first_config) is None
    assert await reader.aget_tuple(second_config) is not None


async def test_no_write_begins_before_a_failed_one_is_rolled_back(sqlite):
    """All share one connection: the rollback of one would take what the next has written with it."""
    storage = sqlite.checkpoints._storage
    fail = asyncio.Event()
    order = []

    async def failing(saver):
        order.append("first")
        await saver.conn.execute("DELETE FROM writes")
        await fail.wait()
        order.append("failed")
        raise LookupError

    async def next_one(saver):
        order.append("second")
        assert not saver.conn.in_transaction

    first = asyncio.create_task(storage.write(failing))
    second = asyncio.create_task(storage.write(next_one))
    await asyncio.wait([first, second], timeout=0.05)
    fail.set()
    with pytest.raises(LookupError):
        await first
    await second
    assert order == ["first", "failed", "second"]


async def test_a_write_that_fails_under_a_cancel_is_logged(sqlite, caplog):
    saver = sqlite.saver()
    connection = sqlite.checkpoints._storage._writer.conn
    failing = mock.AsyncMock(side_effect=sqlite3.OperationalError("disk I/O error"))
    with mock.patch.object(connection, "commit", failing):
        task = asyncio.create_task(put(saver, str(uuid.uuid4()), words="a")[0])
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert "disk I/O error" in caplog.text


async def test_a_write_does_not_count_as_work_of_the_run(store):
    from runs.stopping.cancel_token import CancelToken, current
    from runs.stopping.tracking import track_tasks

    track_tasks(asyncio.get_running_loop())
    token = CancelToken()
    saver = store.saver()
    coroutine, _ = put(saver, str(uuid.uuid4()), words="a")
    current.set(token)
    task = asyncio.create_task(coroutine)
    current.set(None)
    await asyncio.sleep(0)
    assert token.activity.alive().tasks == 1  # the one we made, not the one in which it is written
    await task


async def test_executions_write_at_the_same_time(store):
    savers = [store.saver() for _ in range(4)]
    threads = [str(uuid.uuid4()) for _ in savers]

    async def turn(saver, thread):
        for number in range(15):
            coroutine, config = put(saver, thread, words=str(number))
            await coroutine
            writes = [[("words", f"{task}")] for task in range(3)]
            await asyncio.gather(*(saver.aput_writes(config, w, f"task{w[0][1]}") for w in writes))

    await asyncio.gather(*map(turn, savers, threads))
    reader = store.checkpoints.reader()
    for thread in threads:
        history = [found async for found in reader.alist(generate_config(thread))]
        assert [found.checkpoint["channel_values"]["words"] for found in history] == [
            str(number) for number in reversed(range(15))
        ]
        assert all(len(found.pending_writes) == 3 for found in history)
