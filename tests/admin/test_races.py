"""What an operator does at the very moment at which something else happens."""

import asyncio
import random

import pytest
from django.db import connection, transaction

from runs import operators
from runs.foundation.database import in_thread
from runs.lifecycle import endings
from runs.lifecycle.status import Outcome
from runs.live import bus
from runs.models import AuditEntry, Cancellation, Run, RunEvent, Session
from runs.states import TERMINAL_EVENT, RunStatus
from tests.admin.rows import a_run, a_worker, running_run
from tests.admin.test_actions import do

TRIES = 60


async def test_force_cancel_against_completion_leaves_one_terminal_fact(transactional_db, alice, olivia):
    """Two threads end the same run with random timing: one wins, and the other's answer says so."""
    worker = await in_thread(a_worker)
    chance = random.Random(44)
    won = []
    for _ in range(TRIES):
        run = await in_thread(running_run, alice, worker)
        delays = chance.sample((0, 0, 0.0005, 0.001, 0.002, 0.004), 2)

        async def complete(run=run, delay=delays[0]):
            await asyncio.sleep(delay)
            return await in_thread(endings.finish, run.id, run.claim, RunStatus.COMPLETED)

        async def force(run=run, delay=delays[1]):
            await asyncio.sleep(delay)
            return await in_thread(operators.force_cancel, olivia, run.id, "it hangs")

        finished, forced = await asyncio.gather(complete(), force())
        stored = await Run.objects.aget(id=run.id)
        terminal = [
            event.type async for event in RunEvent.objects.filter(run=run, type__in=TERMINAL_EVENT.values())
        ]
        assert terminal == [TERMINAL_EVENT[RunStatus(stored.status)]]
        assert forced.changed == (stored.status == RunStatus.CANCELLED)
        assert (finished == Outcome.DONE) == (stored.status == RunStatus.COMPLETED)
        operations = [one.outcome async for one in Cancellation.objects.filter(run=run)]
        assert operations == (["reconciled"] if forced.changed else [])
        entry = await AuditEntry.objects.aget(target=str(run.id))
        assert entry.details["changed"] == forced.changed
        won.append(stored.status)
    assert set(won) == {RunStatus.COMPLETED, RunStatus.CANCELLED}, "the timing was not random enough"


def in_another_connection(function, *args):
    """What ``function`` finds in the database from outside of this thread's transaction."""
    from threading import Thread

    found = []

    def look():
        try:
            found.append(function(*args))
        finally:
            connection.close()

    thread = Thread(target=look)
    thread.start()
    thread.join(20)
    return found[0]


@pytest.fixture
def told(monkeypatch):
    """What is told on the bus, and for each the revision that whoever hears it reads at once."""
    heard = []

    def revision(session_id):
        return Session.objects.get(id=session_id).updated_at

    def publish(group, message):
        if group.startswith("session."):
            session_id = group.removeprefix("session.")
            heard.append((message, in_another_connection(revision, session_id)))

    monkeypatch.setattr(bus, "publish", publish)
    return heard


def test_a_subscriber_that_hears_of_an_operators_change_reads_the_new_state(console, alice, told):
    for number in range(20):
        run = a_run(alice, RunStatus.WAITING if number % 2 else RunStatus.QUEUED)
        told.clear()
        do(console, "cancel", run)
        session = Session.objects.get(runs=run)
        assert told
        assert {seen for _, seen in told} == {session.updated_at}


def test_a_change_that_is_rolled_back_is_not_published(alice, olivia, told, monkeypatch):
    run = a_run(alice)
    told.clear()
    with transaction.atomic():
        operators.cancel(olivia, run, "why")
        transaction.set_rollback(True)
    assert told == []
    assert Run.objects.get(id=run).status == RunStatus.QUEUED
