"""A turn becomes a run, or is refused, and runs are claimed in the order of arrival."""

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from runs import operations, statements
from runs.errors import IdempotencyConflict, RunActive
from runs.lifecycle import admission, endings, queue, titles
from runs.lifecycle.status import Outcome
from runs.models import Cancellation, Run, RunEvent
from runs.states import RunStatus
from tests.runs.lifecycle.turns import turn

pytestmark = pytest.mark.django_db


def test_admission_makes_the_run_and_the_users_message_durable_together(alice, session):
    run = admission.admit(session.id, alice, turn("hello world"))

    assert run.status == RunStatus.QUEUED
    queued = RunEvent.objects.get(run=run)
    assert (queued.seq, queued.type) == (1, "run.queued")
    assert queued.data == {"message": run.message_id, "input": "hello world"}
    assert Run.objects.get().message_count == 1


def test_the_same_key_gives_the_same_run_and_another_request_is_refused(alice, session):
    first = admission.admit(session.id, alice, turn("hello", key="k"))

    assert admission.admit(session.id, alice, turn("hello", key="k")).id == first.id
    with pytest.raises(IdempotencyConflict):
        admission.admit(session.id, alice, turn("something else", key="k"))
    assert Run.objects.count() == 1


def test_reject_refuses_while_any_run_is_active_queued_included(alice, session):
    admission.admit(session.id, alice, turn())

    with pytest.raises(RunActive):
        admission.admit(session.id, alice, turn())


def test_enqueue_keeps_the_order_of_arrival(alice, session, worker):
    runs = [admission.admit(session.id, alice, turn(str(n), multitask="enqueue")) for n in range(3)]

    for expected in runs:
        claimed = queue.claim(session.id, worker.id)
        assert claimed.id == expected.id
        assert queue.claim(session.id, worker.id) is None
        assert endings.finish(claimed.id, claimed.claim, RunStatus.COMPLETED) is Outcome.DONE
    assert [run.position for run in Run.objects.order_by("queue_place")] == [1, 2, 3]


def test_interrupt_supersedes_what_is_active_and_spares_the_new_turn(alice, session, worker):
    old = admission.admit(session.id, alice, turn("old"))
    queue.claim(session.id, worker.id)
    waiting = admission.admit(session.id, alice, turn("waiting", multitask="enqueue"))
    new = admission.admit(session.id, alice, turn("new", multitask="interrupt"))

    old.refresh_from_db()
    waiting.refresh_from_db()
    assert old.cancel_requested_at is not None
    assert waiting.status == RunStatus.CANCELLED
    assert new.cancel_requested_at is None
    assert Cancellation.objects.get(run=old).source == "superseded"


def test_the_database_refuses_two_occupying_runs(alice, session, worker):
    admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    second = admission.admit(session.id, alice, turn(multitask="enqueue"))

    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(id=second.id).update(status=RunStatus.RUNNING, position=7)


def test_a_first_turn_gives_the_title_and_the_users_own_title_stays(alice, session):
    admission.admit(session.id, alice, turn("What is the  capital of\nFrance?"))
    session.refresh_from_db()
    assert session.title == "What is the capital of France?"

    operations.rename_session(alice, session.id, "Mine")
    titles.rename(session.id, "Generated", "generated")
    session.refresh_from_db()
    assert session.title == "Mine"


@pytest.mark.sqlite("reads how SQLite would go about it")
@pytest.mark.parametrize("asked", [statements.open_runs, statements.claimable_runs])
def test_what_a_turn_asks_of_its_session_does_not_grow_with_the_session(session, asked):
    with CaptureQueriesContext(connection) as queries:
        asked(session.id)
    [query] = queries.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        plan = [row[3] for row in cursor.fetchall()]
    looked_at = [step for step in plan if step.startswith(("SEARCH", "SCAN"))]
    assert looked_at
    for step in looked_at:
        assert step.endswith("USING INDEX run_queue (session_id=? AND status=?)"), plan
