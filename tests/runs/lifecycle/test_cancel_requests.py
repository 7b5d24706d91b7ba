"""A cancel is one recorded operation, which ends its run or waits for the execution."""

from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.utils import timezone

from runs import operations
from runs.lifecycle import admission, endings, liveness, questions, queue
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.live import notices
from runs.models import Cancellation, RunEvent, Session, Worker
from runs.recovery import sweep
from runs.states import CancelOutcome, ErrorCode, RunStatus
from tests.runs.lifecycle.turns import NOTE, turn, types

pytestmark = pytest.mark.django_db


def test_cancel_of_a_queued_run_ends_it_at_once(alice, session):
    run = admission.admit(session.id, alice, turn())
    revision = Session.objects.get().cancellation_revision

    answer = operations.cancel_run(alice, run.id, reason="changed my mind")

    assert answer["outcome"] == "cancelled"
    assert answer["settled_at"] is not None
    assert types(run) == ["run.queued", *NOTE, "run.cancelled"]
    assert Session.objects.get().cancellation_revision == revision
    assert operations.session_snapshot(alice, session.id)["status"] == "idle"


def test_a_queued_run_ends_while_anothers_cancel_is_pending(alice, session, worker):
    admission.admit(session.id, alice, turn())
    running = queue.claim(session.id, worker.id)
    queued = admission.admit(session.id, alice, turn(multitask="enqueue"))
    operations.cancel_run(alice, running.id)
    before = Session.objects.get().cancellation_revision

    operations.cancel_run(alice, queued.id)

    queued.refresh_from_db()
    assert queued.status == RunStatus.CANCELLED
    assert Session.objects.get().cancellation_revision == before
    assert operations.session_snapshot(alice, session.id)["cancellation_pending"] is True


def test_cancel_of_what_has_ended_is_a_success_that_changes_nothing(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    endings.finish(run.id, claimed.claim, RunStatus.COMPLETED)
    log = types(run)

    for answer in (operations.cancel_run(alice, run.id), operations.cancel_session(alice, session.id)):
        assert answer["id"] is None
        assert answer["outcome"] == "already_finished"
    assert types(run) == log
    assert Cancellation.objects.count() == 0


def test_cancel_of_a_cancelled_run_answers_with_its_own_cancellation(alice, session):
    run = admission.admit(session.id, alice, turn())
    first = operations.cancel_run(alice, run.id)

    assert operations.cancel_run(alice, run.id) == first


def test_an_accepted_cancel_wins_over_every_other_ending(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    operations.cancel_run(alice, run.id)

    error = Failure(ErrorCode.PROVIDER, "broke")
    assert endings.finish(run.id, claimed.claim, RunStatus.COMPLETED) is Outcome.CANCEL_FIRST
    assert endings.finish(run.id, claimed.claim, RunStatus.FAILED, error=error) is Outcome.CANCEL_FIRST
    assert questions.wait(run.id, claimed.claim, []) is Outcome.CANCEL_FIRST
    assert types(run) == ["run.queued", "run.started"]
    assert endings.finish(run.id, claimed.claim, RunStatus.CANCELLED) is Outcome.DONE
    assert Cancellation.objects.get().outcome == CancelOutcome.CANCELLED


def test_the_revision_grows_by_one_per_change(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)

    def shown():
        snapshot = operations.session_snapshot(alice, session.id)
        return snapshot["cancellation_pending"], snapshot["cancellation_revision"]

    assert shown() == (False, 0)
    operations.cancel_run(alice, run.id)
    operations.cancel_run(alice, run.id)
    assert shown() == (True, 1)
    endings.finish(run.id, claimed.claim, RunStatus.CANCELLED)
    assert shown() == (False, 2)


def test_an_overdue_cancel_times_out_and_can_be_tried_again(alice, session, worker, settings):
    settings.RUNS_CANCEL_TIMEOUT = 0
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id)
    Cancellation.objects.update(accepted_at=timezone.now() - timezone.timedelta(seconds=1))

    assert sweep.sweep(worker.id).cancellations_timed_out == 1

    assert Cancellation.objects.get(id=first["id"]).outcome == "timed_out"
    run.refresh_from_db()
    assert run.status == RunStatus.RUNNING
    second = operations.cancel_run(alice, run.id)
    assert second["id"] != first["id"]
    assert operations.session_snapshot(alice, session.id)["cancellation_revision"] == 3


def test_a_cancel_that_timed_out_and_is_carried_out_all_the_same_is_told_as_that(
    alice, session, worker, settings
):
    """Who tries it again, as the time-out says, would hear of the time-out for ever."""
    settings.RUNS_CANCEL_TIMEOUT = 0
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id, reason="Enough.")
    Cancellation.objects.update(accepted_at=timezone.now() - timezone.timedelta(seconds=1))
    sweep.sweep(worker.id)

    endings.finish(run.id, claimed.claim, RunStatus.CANCELLED)

    told = RunEvent.objects.get(run=run, type="run.cancelled").data["cancellation"]
    assert (told["outcome"], told["reason"], told["requested_by"]) == (
        "cancelled",
        "Enough.",
        first["requested_by"],
    )
    for again in (operations.cancel_run(alice, run.id), operations.cancel_session(alice, session.id)):
        assert again == told
    snapshot = operations.session_snapshot(alice, session.id)
    assert (snapshot["cancellation_pending"], snapshot["cancellation_revision"]) == (False, 2)


def test_cancel_of_a_run_whose_worker_is_gone_is_reconciled_at_once(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    answer = operations.cancel_run(alice, run.id)

    assert answer["outcome"] == "reconciled"
    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED
    assert operations.session_snapshot(alice, session.id)["cancellation_pending"] is False


def test_a_worker_that_was_taken_for_dead_is_told_that_its_run_was_cancelled(
    alice, session, worker, monkeypatch
):
    """It may live all the same, and what is cancelled must not go on until its next heartbeat."""
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    monkeypatch.setattr(liveness, "is_dead", lambda worker: True)
    monkeypatch.setattr(notices, "stop_execution", told := Mock())

    assert operations.cancel_run(alice, run.id)["outcome"] == "reconciled"

    assert [(told_of.args[0].id, told_of.kwargs) for told_of in told.call_args_list] == [
        (run.id, {"fenced": True})
    ]


def test_a_second_cancel_finds_that_the_worker_has_died_since(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    second = operations.cancel_run(alice, run.id)

    assert (second["id"], second["outcome"]) == (first["id"], "reconciled")


def test_a_foreign_and_an_unknown_id_are_the_same_and_record_nothing(alice, bob, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)

    messages = set()
    for attempt in (
        lambda: operations.cancel_run(bob, run.id),
        lambda: operations.cancel_run(bob, uuid4()),
        lambda: operations.cancel_run(bob, "no uuid"),
        lambda: operations.cancel_session(bob, session.id),
        lambda: operations.cancel_session(bob, uuid4()),
    ):
        with pytest.raises(operations.NotFound) as refused:
            attempt()
        messages.add(str(refused.value))
    assert len(messages) == 1
    snapshot = operations.session_snapshot(alice, session.id)
    assert (snapshot["cancellation_pending"], snapshot["cancellation_revision"]) == (False, 0)


def test_force_cancel_ends_the_run_first_and_fences_the_execution(alice, olivia, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)

    answer = operations.force_cancel(olivia, run.id, "It hangs.")

    assert (answer["outcome"], answer["escalated"], answer["source"]) == ("reconciled", True, "operator")
    assert endings.finish(run.id, claimed.claim, RunStatus.COMPLETED) is Outcome.FENCED
    assert types(run) == ["run.queued", "run.started", *NOTE, "run.cancelled"]


def test_force_cancel_needs_the_permission(alice, session):
    run = admission.admit(session.id, alice, turn())

    with pytest.raises(operations.Forbidden):
        operations.force_cancel(alice, run.id, "me")
