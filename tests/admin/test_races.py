"""What an operator does at the very moment at which something else happens."""

import asyncio
import threading
from collections import Counter
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from runs import operators
from runs.foundation.database import in_thread
from runs.lifecycle import cancel_requests, endings, locks
from runs.lifecycle.status import Outcome
from runs.live import bus
from runs.models import AuditEntry, Cancellation, Run, RunEvent, Session
from runs.states import TERMINAL_EVENT, RunStatus
from tests.admin.rows import a_run, a_worker, running_run
from tests.admin.test_actions import do
from tests.chance import TRIES, timing

PATIENT = 60.0  # seconds until a test gives up waiting for what takes moments


@pytest.fixture
async def hanging(transactional_db, alice):
    """A run that seems to hang in a worker that lives."""
    return await in_thread(running_run, alice, await in_thread(a_worker))


@pytest.fixture
def lock_queue(monkeypatch):
    """Who locks a run first keeps it until another thread asks for it. Set once the first has the lock."""
    held, wanted, first = threading.Event(), threading.Event(), []
    locked_run = locks.locked_run

    @contextmanager
    def in_order(run_id):
        if not first:
            first.append(threading.get_ident())
            with locked_run(run_id) as locked:
                held.set()
                assert wanted.wait(PATIENT)
                yield locked
            return
        if threading.get_ident() not in first:
            wanted.set()
        with locked_run(run_id) as locked:
            yield locked

    for module in (locks, endings, cancel_requests):
        monkeypatch.setattr(module, "locked_run", in_order)
    return held


def complete(run):
    return endings.finish(run.id, run.claim, RunStatus.COMPLETED)


def force_cancel(operator, run):
    return operators.force_cancel(operator, run.id, "it hangs")


async def test_a_completion_that_ends_the_run_before_a_force_cancel_gets_the_lock_wins(
    hanging, olivia, lock_queue
):
    """The operator's command has seen the run at work, and is told that it had ended."""
    completion = asyncio.create_task(in_thread(complete, hanging))
    assert await asyncio.to_thread(lock_queue.wait, PATIENT)
    forced, finished = await asyncio.gather(in_thread(force_cancel, olivia, hanging), completion)
    await check_one_terminal_fact(hanging, finished, forced, RunStatus.COMPLETED)


async def test_a_force_cancel_that_ends_the_run_before_its_completion_gets_the_lock_wins(
    hanging, olivia, lock_queue
):
    """The execution is told that it is fenced."""
    command = asyncio.create_task(in_thread(force_cancel, olivia, hanging))
    assert await asyncio.to_thread(lock_queue.wait, PATIENT)
    finished, forced = await asyncio.gather(in_thread(complete, hanging), command)
    await check_one_terminal_fact(hanging, finished, forced, RunStatus.CANCELLED)


async def test_force_cancel_against_completion(transactional_db, alice, olivia):
    """Two threads end the same run with random timing."""
    worker = await in_thread(a_worker)
    chance = timing()
    won: Counter[str] = Counter()
    for _ in range(TRIES):
        run = await in_thread(running_run, alice, worker)

        async def later(end, *args, seconds):
            await asyncio.sleep(seconds)
            return await in_thread(end, *args)

        delays = chance.sample((0, 0, 0.0005, 0.001, 0.002, 0.004), 2)
        finished, forced = await asyncio.gather(
            later(complete, run, seconds=delays[0]), later(force_cancel, olivia, run, seconds=delays[1])
        )
        won[await check_one_terminal_fact(run, finished, forced)] += 1
    print(f"{dict(won)} of {TRIES}")


async def check_one_terminal_fact(run, finished, forced, *expected):
    """Log, row, operation, audit entry and both answers tell the same; the status that the run ended with."""
    stored = await Run.objects.aget(id=run.id)
    assert stored.status in (expected or (RunStatus.COMPLETED, RunStatus.CANCELLED))
    terminal = RunEvent.objects.filter(run=run, type__in=TERMINAL_EVENT.values())
    assert [event.type async for event in terminal] == [TERMINAL_EVENT[RunStatus(stored.status)]]
    assert forced.changed == (stored.status == RunStatus.CANCELLED)
    assert (finished == Outcome.DONE) == (stored.status == RunStatus.COMPLETED)
    operations = [one.outcome async for one in Cancellation.objects.filter(run=run)]
    assert operations == (["reconciled"] if forced.changed else [])
    entry = await AuditEntry.objects.aget(target=str(run.id))
    assert entry.details["changed"] == forced.changed
    return stored.status


def in_another_connection(function, *args):
    """What ``function`` finds in the database from outside of this thread's transaction."""
    found = []

    def look():
        try:
            found.append(function(*args))
        finally:
            connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(PATIENT)
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


@pytest.mark.parametrize("status", [RunStatus.QUEUED, RunStatus.WAITING])
def test_a_subscriber_that_hears_of_an_operators_change_reads_the_new_state(console, alice, told, status):
    run = a_run(alice, status)
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
