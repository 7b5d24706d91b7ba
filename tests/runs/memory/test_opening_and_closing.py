"""Checkpoints are opened by several, deleted by session, and closed with all that is in flight."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
import uuid
from unittest import mock

import pytest
from langgraph.checkpoint.conformance.test_utils import (
    generate_config,
)
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from runs.errors import Fenced
from runs.memory.checkpoints import Checkpoints
from runs.memory.checkpoints.sqlite import SqliteStorage
from tests import ROOT
from tests.runs.memory.stores import LIMIT, put, stored


async def test_a_write_waits_while_another_process_holds_the_file(sqlite, tmp_path):
    saver = sqlite.saver()
    other = sqlite3.connect(tmp_path / "checkpoints.sqlite3")
    other.execute("BEGIN IMMEDIATE")
    coroutine, config = put(saver, str(uuid.uuid4()), words="a")
    task = asyncio.create_task(coroutine)
    done, _ = await asyncio.wait([task], timeout=0.2)
    assert not done
    assert await sqlite.checkpoints.reader().aget_tuple(config) is None  # reading does not wait
    other.rollback()
    other.close()
    await task


async def test_deleting_leaves_nothing_of_the_sessions_and_all_of_the_others(store):
    saver = store.saver()
    gone, kept = [uuid.uuid4(), uuid.uuid4()], uuid.uuid4()
    for thread in (*gone, kept):
        coroutine, config = put(saver, str(thread), words=["a"])
        await coroutine
        await saver.aput_writes(config, [("words", "b")], "task")
    await store.checkpoints.delete(gone)
    for thread in gone:
        assert [found async for found in saver.alist(generate_config(str(thread)))] == []
    assert await stored(saver, generate_config(str(kept))) == {("task", "words"): "b"}


async def test_opening_takes_the_file_of_the_settings(settings, tmp_path):
    settings.CHECKPOINT_PATH = tmp_path / "named.sqlite3"
    with mock.patch("runs.memory.checkpoints.connection", mock.Mock(vendor="sqlite")):
        checkpoints = await Checkpoints.open()
    await put(checkpoints.fenced(uuid.uuid4(), 1, "turn"), "1", words="a")[0]
    assert settings.CHECKPOINT_PATH.exists()
    await checkpoints.close()


async def test_the_file_may_be_opened_again_and_twice(tmp_path):
    path = tmp_path / "checkpoints.sqlite3"
    thread = str(uuid.uuid4())
    first = Checkpoints(await SqliteStorage.open(path))
    second = Checkpoints(await SqliteStorage.open(path))
    await put(first.fenced(uuid.uuid4(), 1, "turn"), thread, words="a")[0]
    await put(second.fenced(uuid.uuid4(), 1, "turn"), thread, words="b")[0]
    for checkpoints in (first, second):
        found = [found async for found in checkpoints.reader().alist(generate_config(thread))]
        assert [each.checkpoint["channel_values"]["words"] for each in found] == ["b", "a"]
        await checkpoints.close()


async def test_opening_waits_for_a_switch_of_the_journal_mode_that_fails_at_once(tmp_path, monkeypatch):
    """SQLite does not wait there, unlike with any other lock."""
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
    setup, failures = AsyncSqliteSaver.setup, [busy, busy]

    async def failing_twice(saver):
        if failures:
            raise failures.pop()
        await setup(saver)

    monkeypatch.setattr(AsyncSqliteSaver, "setup", failing_twice)
    storage = await SqliteStorage.open(tmp_path / "checkpoints.sqlite3")
    await storage.close()
    assert failures == []


OPEN_TWICE = """
import asyncio, sys, uuid
import django
django.setup()
from runs.memory.checkpoints.sqlite import SqliteStorage
from runs.memory.checkpoints import Checkpoints
from langgraph.checkpoint.conformance.test_utils import put_test_checkpoint

async def main():
    checkpoints = Checkpoints(await SqliteStorage.open(sys.argv[1]))
    for _ in range(20):
        await put_test_checkpoint(checkpoints.fenced(uuid.uuid4(), 1, "turn"), thread_id=sys.argv[2])
    await checkpoints.close()

asyncio.run(main())
"""


async def test_two_fresh_processes_may_open_the_same_new_file(tmp_path):
    """Both make the tables; a command beside the server is allowed to, and no write is lost."""
    path, thread = tmp_path / "checkpoints.sqlite3", str(uuid.uuid4())
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_TWICE, str(path), thread,
            cwd=ROOT, stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in processes:
        async with asyncio.timeout(3 * LIMIT):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
    checkpoints = Checkpoints(await SqliteStorage.open(path))
    assert len([found async for found in checkpoints.reader().alist(generate_config(thread))]) == 40
    await checkpoints.close()


async def test_closing_awaits_what_is_in_flight_and_leaves_no_thread(backend):
    await asyncio.to_thread(threading.get_ident)  # so that the loop's own threads are there already
    run = backend.new_run()
    before = set(threading.enumerate())
    checkpoints = Checkpoints(await backend.storage())
    saver = checkpoints.fenced(run, 1, "turn")
    thread = str(uuid.uuid4())
    tasks = [asyncio.create_task(put(saver, thread, words="a")[0]) for _ in range(10)]
    await asyncio.sleep(0)
    await checkpoints.close()
    await asyncio.gather(*tasks)
    with pytest.raises(Fenced):
        await put(saver, thread, words="late")[0]
    with pytest.raises(Fenced):
        await saver.aget_tuple(generate_config(thread))

    assert_ended(set(threading.enumerate()) - before)
    again = Checkpoints(await backend.storage())
    assert len([found async for found in again.reader().alist(generate_config(thread))]) == 10
    await again.close()


async def test_opening_what_is_no_database_fails_and_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    path = tmp_path / "checkpoints.sqlite3"
    path.write_text("this is no database, and long enough to be seen as none " * 20)
    with pytest.raises(sqlite3.DatabaseError):
        await SqliteStorage.open(path)
    assert_ended(set(threading.enumerate()) - before)


def assert_ended(threads):
    """All of these end but the loop's own."""
    for thread in threads:
        if not thread.name.startswith("asyncio"):
            thread.join(LIMIT)
            assert not thread.is_alive(), thread


async def test_the_sqlite_file_has_the_documented_modes(sqlite):
    storage = sqlite.checkpoints._storage
    for saver, query_only in ((storage._writer, 0), (storage._reader, 1)):
        for pragma, value in {
            "journal_mode": "wal", "synchronous": 1, "busy_timeout": 10_000, "query_only": query_only,
        }.items():  # fmt: skip
            async with saver.conn.execute(f"PRAGMA {pragma}") as cursor:
                assert await cursor.fetchone() == (value,)
