"""The engine on PostgreSQL: connections are few, are given back and may die at any time, and locks end."""

import asyncio
import os
import random
import threading
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from unittest.mock import Mock
from uuid import uuid4

import procrastinate
import psycopg
import pytest
from asgiref.sync import SyncToAsync
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.utils import timezone
from procrastinate.contrib import django as procrastinate_django
from procrastinate.contrib.django.django_connector import DjangoConnector
from psycopg import sql

from runs import operations
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.lifecycle import jobs, liveness
from runs.memory.checkpoints import postgres as checkpoints
from runs.models import DailyTotal, Run, Session, Worker
from runs.recovery import deletion
from runs.states import TERMINAL
from runs.worker import graph_input
from runs.worker.engine import Engine
from tests.fakes import Hold, Round, call, numbered, say, spelled
from tests.runs.harness import open_harness
from tests.runs.waiting import event, log_of, terminal, until

pytestmark = pytest.mark.services("about the connections and locks of PostgreSQL")


class Server:
    """The database as an outsider sees it, who is connected to another one of the same server."""

    def __init__(self, outside, name):
        self._outside = outside
        self.name = name

    def ask(self, query, *parameters):
        return self._outside.execute(query, parameters).fetchall()

    def sessions(self, state="%"):
        """How many sessions there are, in a state."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE %s"
        return self.ask(query, self.name, state)[0][0]

    def end_sessions(self):
        """End every session; how many there were."""
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        return len(self.ask(query, self.name))

    @contextmanager
    def away(self):
        """Nobody is connected any more, and nobody can connect."""
        self._let_connect(False)
        try:
            self.end_sessions()
            yield
        finally:
            self._let_connect(True)

    @contextmanager
    def reading_only(self):
        """Nothing can be written."""
        name = sql.Identifier(self.name)
        self._outside.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
        )
        try:
            self.end_sessions()
            yield
        finally:
            self._outside.execute(
                sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name)
            )
            self.end_sessions()

    def _let_connect(self, allowed):
        statement = "ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}"
        self._outside.execute(sql.SQL(statement).format(sql.Identifier(self.name), sql.Literal(str(allowed))))

    @contextmanager
    def holding(self, table, row_id):
        """Another program holds a row in an open transaction."""
        address = psycopg.conninfo.make_conninfo(os.environ["DATABASE_URL"], dbname=self.name)
        with closing(psycopg.connect(address)) as other:
            query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(table))
            other.execute(query, (row_id,))
            yield


@pytest.fixture
def server(transactional_db, alice):
    # The connections that no pool looks after: of the test's own thread, and of that of the ORM's coroutines.
    connection.close()
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()
    address = os.environ["DATABASE_URL"]
    with closing(psycopg.connect(address, autocommit=True)) as outside:
        yield Server(outside, connection.settings_dict["NAME"])


@pytest.fixture
async def harness(server, engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


def pool_of_django():
    return connection.pool


def pool_of_checkpoints(harness):
    return harness.engine.checkpoints._storage._pool


def given_up(harness):
    """How often nobody could be given a connection for the checkpoints."""
    return pool_of_checkpoints(harness).get_stats().get("requests_errors", 0)


@contextmanager
def impatient(harness):
    """Checkpoints are given up on soon; also by what only has to wait for a busy machine."""
    pool = pool_of_checkpoints(harness)
    usual, pool.timeout = pool.timeout, 0.3
    try:
        yield
    finally:
        pool.timeout = usual


async def test_whoever_waits_for_a_lock_or_sits_on_one_is_ended(harness):
    async def limits(ask):
        return [await ask(f"SHOW {name}") for name in ("lock_timeout", "idle_in_transaction_session_timeout")]

    def django(query):
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]

    async def saver(query):
        async with pool_of_checkpoints(harness).connection() as one:
            return (await (await one.execute(query)).fetchone()).popitem()[1]

    assert await limits(lambda query: in_thread(django, query)) == ["15s", "10s"]
    assert await limits(saver) == ["15s", "10s"]


async def test_after_a_burst_every_connection_is_back(harness, server):
    most = 0

    async def count():
        nonlocal most
        while True:
            most = max(most, server.sessions())
            await asyncio.sleep(0.02)

    async def turn(number):
        session = (await in_thread(operations.create_session, harness.owner))["id"]
        started = await in_thread(operations.start_turn, harness.owner, session, f"turn {number}")
        await asyncio.sleep(random.uniform(0, 0.5))
        await operations.history(harness.owner, session)
        if number % 3 == 0:
            await in_thread(operations.cancel_run, harness.owner, started["id"])

    harness.script.add(*(Round(numbered(20, delay=0.01)) for _ in range(40)))
    counting = asyncio.create_task(count())
    await asyncio.gather(*(turn(number) for number in range(40)))
    await until(lambda: Run.objects.filter(status__in=TERMINAL).count() == 40, 30, "the end of all turns")
    counting.cancel()

    bound = pool_of_django().max_size + checkpoints.POOL_SIZE
    assert 2 < most <= bound
    for pool in (pool_of_django(), pool_of_checkpoints(harness)):
        await until(lambda pool=pool: _is_whole(pool), what="the return of every connection")
    assert server.sessions("%in transaction%") == 0


def _is_whole(pool):
    stats = pool.get_stats()
    return stats["pool_available"] == stats["pool_size"] and not stats.get("requests_waiting")


async def test_connections_that_died_between_two_turns_are_not_noticed(harness, server):
    harness.script.add(say("one"), say("two"))
    assert (await terminal(await harness.start("first"))).status == "completed"

    assert server.end_sessions() >= 2

    assert (await terminal(await harness.start("second"))).status == "completed"
    assert [message["text"] for message in await harness.history()] == ["first", "one", "second", "two"]


async def test_connections_that_die_during_a_tool_cost_no_turn(harness, server):
    harness.script.add(call("slow_sync", seconds=1), say("done"))
    run_id = await harness.start()
    await harness.marks.seen("slow_sync started")

    assert server.end_sessions() >= 2

    assert (await terminal(run_id)).status == "completed"
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_a_turn_waits_for_a_database_that_is_away_for_a_moment(harness, server):
    harness.script.add(Round(numbered(20), Hold("middle"), numbered(20)), say("end"))
    run_id = await harness.start()
    gate = harness.script.gate("middle")
    await gate.reached()
    await event(run_id, "message.delta")

    with server.away():
        gate.open()
        await asyncio.sleep(2)  # what the turn says meanwhile has to wait

    ended = await terminal(run_id, 20)
    assert ended.status == "completed", ended.error_message
    assert [one.seq for one in await log_of(run_id)] == list(range(1, ended.last_seq + 1))
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_after_an_outage_silence_proves_nothing_before_all_had_their_time_again(
    harness, settings, monkeypatch
):
    """While the database is away nobody can beat; whoever looks first must not take all others for dead."""
    engine, before = harness.engine, timezone.now() - timedelta(minutes=59)
    named = {"host": "elsewhere", "boot": "b", "pid": 1, "pid_started": "1", "version": "1"}
    silent = await in_thread(lambda: Worker.objects.create(**named, heartbeat_at=before))
    ticks = [0.0]
    monkeypatch.setattr(engine, "watch", liveness.Watch(lambda: ticks[0]))

    async def beat_for(times):
        for _ in range(times):
            ticks[0] += settings.RUNS_HEARTBEAT
            await engine.beat()

    async def is_on_the_list():
        is_dead = await in_thread(liveness.is_dead, silent)
        await engine.sweep()
        assert is_dead is not await in_thread(found.exists)
        return not is_dead

    found = Worker.objects.filter(id=silent.id)
    await beat_for(10)
    ticks[0] += 3600  # nothing got through
    assert await is_on_the_list(), "a sweep came before the first heartbeat"
    await beat_for(1)
    assert await is_on_the_list()

    await beat_for(liveness.MISSED_BEATS)
    assert not await is_on_the_list()


async def test_a_database_that_takes_no_writes_shows_nobodys_silence(harness, server, monkeypatch):
    """After a failover it may answer and take no heartbeats. A web process has no row that tells it so."""
    watch = liveness.Watch()
    monkeypatch.setattr(harness.engine, "watch", watch)
    monkeypatch.setattr(watch, "beat", beaten := Mock())
    with server.reading_only(), pytest.raises(DatabaseError, match="read-only"):
        await Engine.beat(harness.engine)
    assert not beaten.called

    await Engine.beat(harness.engine)
    assert beaten.called


async def test_a_queue_that_loses_its_connection_says_it_as_the_database_does(server, monkeypatch):
    monkeypatch.setattr(procrastinate_django, "app", procrastinate.App(connector=DjangoConnector()))

    def defer():
        with transaction.atomic():
            Run.objects.exists()
            server.end_sessions()
            jobs.defer(uuid4())

    with pytest.raises(DATABASE_UNAVAILABLE):
        await in_thread(defer)


async def test_a_turn_ends_with_a_reason_when_the_database_is_away_for_long(harness, server):
    harness.script.add(call("mark", x="1"), Round(numbered(5), Hold("middle")), say("never"))
    run_id = await harness.start()
    gate = harness.script.gate("middle")
    await gate.reached()

    with impatient(harness):
        with server.away():
            gate.open()
            with pytest.raises(OperationalError):
                await in_thread(operations.start_turn, harness.owner, harness.session, "while it is away")
            await until(lambda: given_up(harness), 20, "the checkpoints' giving up")
        ended = await terminal(run_id, 30)

    assert ended.status == "failed"
    assert ended.error_message.startswith("The database did not answer")
    await harness.assert_next_completes()
    texts = [message["text"] for message in await harness.history()]
    assert texts[0] == "go"
    assert "while it is away" not in texts


async def test_a_turn_waits_with_the_repair_of_others_for_a_database_that_is_away(
    harness, server, monkeypatch
):
    gate = harness.script.gate("first")
    harness.script.add(Round(numbered(3), Hold("first")), say("third"))
    first = await harness.start("first")
    await gate.reached()
    second = await harness.start("second", multitask="enqueue")
    await harness.cancel(second)  # ends in the queue: the next turn brings it into the history
    repair, tries, asked_for = graph_input.repair, [], asyncio.Event()

    async def repair_while_it_is_away(*args, **options):
        tries.append(args)
        if len(tries) > 1:
            return await repair(*args, **options)
        await asked_for.wait()
        with impatient(harness), server.away():
            return await repair(*args, **options)

    monkeypatch.setattr(graph_input, "repair", repair_while_it_is_away)
    gate.open()
    assert (await terminal(first)).status == "completed"

    third = await harness.start("third")
    asked_for.set()
    await until(lambda: len(tries) > 1)
    third = await terminal(third, 20)

    assert third.status == "completed", third.error_message
    assert len(tries) > 1
    texts = [message["text"] for message in await harness.history()]
    assert [texts[0], texts[2], texts[-1]] == ["first", "second", "third"]
    await harness.assert_sendable()


@pytest.mark.parametrize("table", ["runs_session", "runs_run"])
async def test_a_lock_that_somebody_holds_delays_a_turn_and_loses_nothing(harness, server, table):
    harness.script.add(call("mark", x="1"), Round(numbered(20), Hold("middle"), numbered(20)))
    run_id = await harness.start()
    gate = harness.script.gate("middle")
    await gate.reached()
    await event(run_id, "message.delta")

    with server.holding(table, run_id if table == "runs_run" else harness.session):
        gate.open()
        await harness.ledger.ended(2)
        await asyncio.sleep(1)
        assert (await harness.run(run_id)).status == "running"

    ended = await terminal(run_id)
    assert ended.status == "completed", ended.error_message
    words = " ".join(f"w{number}" for number in range(1, 21))
    assert (await harness.history())[-1]["text"].startswith(words)
    await harness.assert_next_completes()


async def test_a_tool_that_a_model_calls_by_an_endless_name_costs_no_turn(harness):
    harness.script.add(Round(spelled("mark" * 60, {"x": "1"})), say("Done."))
    ended = await terminal(await harness.start())

    assert ended.status == "completed", ended.error_message
    (asked,) = (await harness.history())[1]["tool_calls"]
    logged = [one.data for one in await log_of(ended.id) if one.type == "message.completed"]
    assert asked["name"] == logged[0]["tool_calls"][0]["name"]
    assert asked["status"] == "failed"
    await harness.assert_sendable()


@pytest.mark.parametrize("call_id", ["call_" + "x" * 300, "".join(map(str, range(3000)))])
@pytest.mark.parametrize("seconds", [0, 2], ids=["at once", "a while"])
async def test_a_tool_call_with_an_id_of_any_length_costs_no_turn(harness, call_id, seconds):
    harness.script.add(Round(spelled("slow_async", {"seconds": seconds}, id=call_id)), say("Done."))
    ended = await terminal(await harness.start())

    assert ended.status == "completed", ended.error_message
    (shown,) = (await harness.history())[1]["tool_calls"]
    assert (shown["id"], shown["status"]) == (call_id, "completed")
    told = {one.data["tool_call"] for one in await log_of(ended.id) if one.type.startswith("tool.")}
    assert told == {call_id}
    await harness.assert_next_completes()


@pytest.mark.parametrize("are_there", [False, True], ids=["first totals", "further totals"])
async def test_sessions_that_are_deleted_at_once_add_to_the_same_totals_one_after_the_other(
    server, alice, are_there
):
    """Their turns ended the same day and in another order."""
    day, meeting = timezone.localdate(), threading.Barrier(2)

    def make(*statuses):
        session = Session.objects.create(owner=alice, agent="assistant")
        for number, status in enumerate(statuses):
            Run.objects.create(
                session=session,
                agent="assistant",
                queue_place=number,
                position=number,
                status=status,
                message_id=str(number),
                finished_at=timezone.now(),
            )
            if are_there:
                DailyTotal.objects.get_or_create(day=day, agent="assistant", status=status)
        return session.id

    def delete(session_id):
        have_met = False

        def meet(execute, sql, *rest):
            nonlocal have_met
            done = execute(sql, *rest)
            if not have_met and "runs_dailytotal" in sql and not sql.startswith("SELECT"):
                have_met = True  # one holds a total now; the other does, too, or waits for it
                with suppress(threading.BrokenBarrierError):
                    meeting.wait(1)
            return done

        with connection.execute_wrapper(meet):
            deletion._delete_rows(session_id, alice, "", None)

    ways = ("completed", "interrupted"), ("interrupted", "completed")
    sessions = [await in_thread(make, *statuses) for statuses in ways]
    await asyncio.gather(*(in_thread(delete, one) for one in sessions))

    totals = await in_thread(lambda: list(DailyTotal.objects.values_list("day", "status", "runs")))
    assert sorted(totals) == [(day, "completed", 2), (day, "interrupted", 2)]
