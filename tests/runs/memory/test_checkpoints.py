"""Checkpoints: whole whatever is cancelled, fenced after the end, else the same as LangGraph's own."""

import asyncio
import operator
import random
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, TypedDict
from unittest import mock

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import (
    generate_checkpoint,
    generate_config,
    generate_metadata,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from runs.errors import Fenced
from runs.memory.checkpoints import Checkpoints
from runs.memory.checkpoints.postgres import PostgresStorage, create_tables
from runs.memory.checkpoints.sqlite import SqliteStorage
from runs.memory.checkpoints.storage import Storage
from runs.models import Run, Session, Worker
from runs.states import RunStatus
from tests import ROOT
from tests.runs.postgres import django_database, postgres  # noqa: F401 (a fixture)

LIMIT = 20  # seconds after which something that should happen at once is taken to be stuck
ALIAS = "checkpoints_under_test"


# The two databases


@pytest.fixture(scope="module")
def database(postgres, django_db_blocker):  # noqa: F811
    """A PostgreSQL database with the tables of the runs and those of LangGraph; its address."""
    user_model = get_user_model()
    with postgres.database() as address, django_db_blocker.unblock():
        entry = {"default": connections.settings["default"], ALIAS: django_database(address)}
        connections.settings[ALIAS] = connections.configure_settings(entry)[ALIAS]
        with connections[ALIAS].schema_editor() as editor:
            for model in (ContentType, Permission, Group, user_model, Session, Worker, Run):
                editor.create_model(model)
        create_tables(ALIAS)
        create_tables(ALIAS)  # as every migrate does
        user_model.objects.using(ALIAS).create(username="alice")
        yield address
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


@dataclass
class Backend:
    """One of the two databases."""

    name: str
    storage: Callable[[], Awaitable[Storage]]  # opens it; any number of times, for the same contents
    new_run: Callable[[], uuid.UUID]  # makes a run that is running under claim 1
    address: str = ""  # of PostgreSQL

    async def open(self):
        return Store(Checkpoints(await self.storage()), self.new_run)


class Store:
    """Checkpoints under test, and the runs that own them."""

    def __init__(self, checkpoints, new_run):
        self.checkpoints = checkpoints
        self.new_run = new_run
        self._run = new_run()

    def saver(self):
        """A saver with its own fence."""
        return self.checkpoints.fenced(self._run, 1)


@pytest.fixture
def sqlite_backend(tmp_path):
    return Backend("sqlite", lambda: SqliteStorage.open(tmp_path / "checkpoints.sqlite3"), uuid.uuid4)


@pytest.fixture
def postgresql_backend(database):
    def new_run():
        owner = get_user_model().objects.using(ALIAS).get()
        session = Session.objects.using(ALIAS).create(owner=owner, agent="assistant")
        run = Run.objects.using(ALIAS).create(
            session=session, queue_place=1, position=1, status=RunStatus.RUNNING, claim=1, message_id="m"
        )
        connections[ALIAS].close()
        return run.id

    # Django refuses its ORM on an event loop.
    with ThreadPoolExecutor(1) as threads:
        yield Backend(
            "postgresql",
            lambda: PostgresStorage.open(ALIAS),
            lambda: threads.submit(new_run).result(LIMIT),
            database,
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request):
    """Each of the two in turn."""
    return request.getfixturevalue(f"{request.param}_backend")


@pytest.fixture
async def store(backend):
    store = await backend.open()
    yield store
    await store.checkpoints.close()


@pytest.fixture
async def sqlite(sqlite_backend):
    store = await sqlite_backend.open()
    yield store
    await store.checkpoints.close()


@pytest.fixture
async def shared(postgresql_backend):
    store = await postgresql_backend.open()
    yield store
    await store.checkpoints.close()


async def stored(reader, config):
    """``{(task, index of the write): value}`` of the checkpoint that ``config`` names, or None."""
    found = await reader.aget_tuple(config)
    return found and {(task, channel): value for task, channel, value in found.pending_writes}


def put(saver, thread_id, **values):
    """Start putting a checkpoint; the coroutine, and the config under which it will be found."""
    checkpoint = generate_checkpoint(
        channel_values=values, channel_versions=dict.fromkeys(values, "1"), versions_seen={}
    )
    config = generate_config(thread_id)
    coroutine = saver.aput(config, checkpoint, generate_metadata(), dict.fromkeys(values, "1"))
    return coroutine, generate_config(thread_id, checkpoint_id=checkpoint["id"])


# The same as LangGraph's own saver


async def test_the_fenced_saver_conforms_like_langgraphs_own(backend):
    @checkpointer_test(name="fenced")
    async def fenced():
        store = await backend.open()
        yield store.saver()
        await store.checkpoints.close()

    @checkpointer_test(name="raw")
    async def raw():
        if backend.name == "sqlite":
            async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
                yield saver
        else:
            async with AsyncPostgresSaver.from_conn_string(backend.address) as saver:
                yield saver

    own, theirs = await validate(fenced), await validate(raw)
    assert own.passed_all(), own.to_dict()
    for capability, result in theirs.results.items():
        assert own.results[capability].detected == result.detected
        assert own.results[capability].tests_passed == result.tests_passed
    assert own.results["put"].tests_passed > 0


async def test_a_graph_in_a_thread_may_use_the_methods_without_a(store):
    saver = store.saver()
    thread = str(uuid.uuid4())
    coroutine, _ = put(saver, thread, words="a")
    await coroutine

    def in_thread():
        config = saver.get_tuple(generate_config(thread)).config
        saver.put_writes(config, [("words", "b")], "task")
        assert saver.get_delta_channel_history(config=config, channels=["words"]) == {"words": {"writes": []}}
        (found,) = saver.list(generate_config(thread))
        assert found.pending_writes == [("task", "words", "b")]
        saver.delete_thread(thread)
        assert saver.get_tuple(config) is None

    await asyncio.to_thread(in_thread)
    with pytest.raises(asyncio.InvalidStateError):
        saver.get_tuple(generate_config(thread))


async def test_reading_a_history_may_read_in_between(store):
    """LangGraph's SQLite saver holds its lock while it lists; reading inside of that would never end."""
    saver = store.saver()
    thread = str(uuid.uuid4())
    for number in range(3):
        await put(saver, thread, words=str(number))[0]
    reader = store.checkpoints.reader()
    async with asyncio.timeout(LIMIT):
        seen = [
            (await reader.aget_tuple(found.config)).checkpoint["channel_values"]["words"]
            async for found in reader.alist(generate_config(thread))
        ]
    assert seen == ["2", "1", "0"]


async def test_a_reader_writes_nothing(store):
    reader = store.checkpoints.reader()
    with pytest.raises(NotImplementedError):
        await reader.aput_writes(generate_config(checkpoint_id="1"), [("words", "a")], "task")


async def test_a_saver_with_an_allowlist_has_the_same_fence(store):
    saver = store.saver()
    thread = str(uuid.uuid4())
    allowed = saver.with_allowlist([("decimal", "Decimal")])
    await put(allowed, thread, words="a")[0]
    assert await allowed.aget_tuple(generate_config(thread)) is not None
    await saver.fence()
    with pytest.raises(Fenced):
        await put(allowed, thread, words="b")[0]


# Whole or not at all


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


# The fence


async def test_after_fencing_nothing_is_written(store):
    saver = store.saver()
    coroutine, config = put(saver, str(uuid.uuid4()), words="a")
    await coroutine
    await saver.fence()
    await saver.fence()
    thread = config["configurable"]["thread_id"]
    for late in (
        put(saver, thread, words="late")[0],
        saver.aput_writes(config, [("words", "late")], "task"),
        saver.adelete_thread(thread),
    ):
        with pytest.raises(Fenced):
            await late
    with pytest.raises(Fenced):
        await asyncio.to_thread(saver.put_writes, config, [("words", "late")], "task")
    assert await stored(saver, config) == {}  # and reading goes on


async def test_fencing_awaits_what_is_in_flight(store):
    reader = store.checkpoints.reader()
    chance = random.Random(6)
    for _ in range(40):
        saver = store.saver()
        puts = [put(saver, str(uuid.uuid4()), words="a") for _ in range(5)]
        tasks = [asyncio.create_task(coroutine) for coroutine, _ in puts]
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        await saver.fence()
        counts = [await reader.aget_tuple(config) is not None for _, config in puts]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        # What had begun is there when fence() returns; what had not is refused.
        assert counts == [not isinstance(result, Fenced) for result in results]


class State(TypedDict):
    words: Annotated[list, DeltaChannel(lambda state, writes: [*state, *(w for ws in writes for w in ws)])]
    count: Annotated[int, operator.add]


def build_graph():
    def answer(state):
        return {"words": [f"answer {len(state['words'])}"], "count": 1}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph


async def test_a_straggler_cannot_rewrite_history_through_an_old_checkpoint(store):
    """DeltaChannel replays the history from its writes, so a late one on an old checkpoint would show."""
    config = generate_config(str(uuid.uuid4()))
    saver = store.saver()
    graph = build_graph()
    first = graph.compile(saver)
    await first.ainvoke({"words": ["question 1"]}, config, durability="sync")
    old = [found async for found in saver.alist(config)][1].config  # the one the node worked on
    await saver.fence()

    second = graph.compile(store.saver())
    await second.ainvoke({"words": ["question 2"]}, config, durability="sync")
    expected = ["question 1", "answer 1", "question 2", "answer 3"]
    with pytest.raises(Fenced):
        await saver.aput_writes(old, [("words", ["late"])], "straggler")
    reading = graph.compile(store.checkpoints.reader())
    assert (await reading.aget_state(config)).values["words"] == expected

    # Without the fence it would have been rewritten, so the above is no accident.
    await store.saver().aput_writes(old, [("words", ["late"])], "straggler")
    assert "late" in (await reading.aget_state(config)).values["words"]


async def test_a_graph_reads_its_own_writes_and_its_history(store):
    config = generate_config(str(uuid.uuid4()))
    graph = build_graph().compile(store.saver())
    for number in range(3):
        await graph.ainvoke({"words": [f"question {number}"]}, config, durability="sync")
    states = [state async for state in graph.aget_state_history(config)]
    assert states[0].values["words"][-1] == "answer 5"
    assert states[0].values["count"] == 3
    assert len(states) == 9


@pytest.mark.parametrize("change", ["status = 'cancelled'", "status = 'waiting'", "claim = 2"])
async def test_on_postgresql_the_run_itself_is_the_fence(shared, database, change):
    """Nobody tells the saver anything; another process has changed the run."""
    run = shared.new_run()
    saver = shared.checkpoints.fenced(run, 1)
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
        saver = shared.checkpoints.fenced(run, 1)
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
    saver = shared.checkpoints.fenced(run, 1)
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
    coroutine, config = put(checkpoints.fenced(run, 1), str(uuid.uuid4()), words="a")
    async with await psycopg.AsyncConnection.connect(database) as frozen:
        await frozen.execute("SELECT 1 FROM runs_run WHERE id = %s FOR UPDATE", (run,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await coroutine
    assert await checkpoints.reader().aget_tuple(config) is None
    await checkpoints.close()


# C34


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


# Opening, deleting, closing


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
    await put(checkpoints.fenced(uuid.uuid4(), 1), "1", words="a")[0]
    assert settings.CHECKPOINT_PATH.exists()
    await checkpoints.close()


async def test_the_file_may_be_opened_again_and_twice(tmp_path):
    path = tmp_path / "checkpoints.sqlite3"
    thread = str(uuid.uuid4())
    first = Checkpoints(await SqliteStorage.open(path))
    second = Checkpoints(await SqliteStorage.open(path))
    await put(first.fenced(uuid.uuid4(), 1), thread, words="a")[0]
    await put(second.fenced(uuid.uuid4(), 1), thread, words="b")[0]
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
        await put_test_checkpoint(checkpoints.fenced(uuid.uuid4(), 1), thread_id=sys.argv[2])
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
    saver = checkpoints.fenced(run, 1)
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
