"""Turns wait for a database that is away, and end with a reason when that takes too long."""

import asyncio
import threading
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.db import DatabaseError, OperationalError
from django.utils import timezone

from runs import operations
from runs.foundation.database import in_thread
from runs.lifecycle import liveness
from runs.log import writer
from runs.models import Worker
from runs.worker import graph_input
from runs.worker.engine import Engine
from tests.fakes import Hold, Round, call, numbered, say
from tests.runs.postgresql.server import pool_of_checkpoints
from tests.runs.waiting import event, log_of, terminal, until

pytestmark = pytest.mark.services("about the connections and locks of PostgreSQL")


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


async def test_a_turn_waits_for_a_database_that_is_away_for_a_moment(harness, server, monkeypatch):
    harness.script.add(Round(numbered(20), Hold("middle"), numbered(20)), say("end"))
    run_id = await harness.start()
    gate = harness.script.gate("middle")
    await gate.reached()
    await event(run_id, "message.delta")

    commit, tried = writer._commit, threading.Event()
    with server.away():
        monkeypatch.setattr(writer, "_commit", lambda *batch: (tried.set(), commit(*batch))[1])
        gate.open()
        assert await asyncio.to_thread(tried.wait, 20)  # what the turn says meanwhile has to wait

    ended = await terminal(run_id, 20)
    assert ended.status == "completed", ended.error_message
    assert [one.seq for one in await log_of(run_id)] == list(range(1, ended.last_seq + 1))
    await harness.assert_sendable()
    await harness.assert_next_completes()


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
