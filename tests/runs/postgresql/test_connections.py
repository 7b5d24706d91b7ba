"""Connections are few, are given back and may die at any time."""

import asyncio
from uuid import uuid4

import procrastinate
import pytest
from django.db import connection, transaction
from procrastinate.contrib import django as procrastinate_django
from procrastinate.contrib.django.django_connector import DjangoConnector

from runs import operations
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.lifecycle import jobs
from runs.memory.checkpoints import postgres as checkpoints
from runs.models import Run
from runs.states import TERMINAL
from tests.fakes import Round, call, numbered, say
from tests.runs.postgresql.server import pool_of_checkpoints, pool_of_django
from tests.runs.waiting import event, terminal, until

pytestmark = pytest.mark.services("about the connections and locks of PostgreSQL")


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
    counted = []

    async def turn(number):
        session = (await in_thread(operations.create_session, harness.owner))["id"]
        counted.append(server.sessions())
        started = await in_thread(operations.start_turn, harness.owner, session, f"turn {number}")
        await harness.ledger.called(number // 2)
        counted.append(server.sessions())
        await operations.history(harness.owner, session)
        counted.append(server.sessions())
        if number % 3 == 0:
            await in_thread(operations.cancel_run, harness.owner, started["id"])

    harness.script.add(*(Round(numbered(20, delay=0.01)) for _ in range(40)))
    await asyncio.gather(*(turn(number) for number in range(40)))
    await until(lambda: Run.objects.filter(status__in=TERMINAL).count() == 40, 30, "the end of all turns")

    bound = pool_of_django().max_size + checkpoints.POOL_SIZE
    assert 2 < max(counted) <= bound
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
    harness.script.add(call("held_sync", mark="the sessions have ended"), say("done"))
    run_id = await harness.start()
    await event(run_id, "tool.started")

    assert server.end_sessions() >= 2
    harness.marks.write("the sessions have ended")

    assert (await terminal(run_id)).status == "completed"
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_a_queue_that_loses_its_connection_says_it_as_the_database_does(server, monkeypatch):
    monkeypatch.setattr(procrastinate_django, "app", procrastinate.App(connector=DjangoConnector()))

    def defer():
        with transaction.atomic():
            Run.objects.exists()
            server.end_sessions()
            jobs.defer(uuid4())

    with pytest.raises(DATABASE_UNAVAILABLE):
        await in_thread(defer)
