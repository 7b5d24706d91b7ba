"""A run whose worker is lost is interrupted once, and waits for a decision."""

from uuid import uuid4

import pytest

from runs import operations
from runs.errors import NotInterrupted
from runs.lifecycle import admission, endings, queue
from runs.models import Cancellation, RunEvent, Worker
from runs.recovery import sweep
from runs.states import CancelOutcome, InterruptReason, RunStatus
from tests.runs.lifecycle.turns import turn, types

pytestmark = pytest.mark.django_db


def test_a_dead_workers_run_is_reclaimed_once_and_a_fresh_one_never(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)

    assert sweep.sweep(uuid4()).runs_interrupted == 0
    Worker.objects.update(pid=2**22 + 1, pid_started="1")
    assert sweep.sweep(uuid4()).runs_interrupted == 1
    assert sweep.sweep(uuid4()).runs_interrupted == 0
    assert types(run) == ["run.queued", "run.started", "run.interrupted"]
    assert RunEvent.objects.get(type="run.interrupted").data["reason"] == InterruptReason.WORKER_LOST
    assert operations.session_snapshot(alice, session.id)["status"] == "interrupted"


def test_a_reclaimed_run_with_an_accepted_cancel_becomes_cancelled(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    operations.cancel_run(alice, run.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    sweep.sweep(uuid4())

    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED
    assert Cancellation.objects.get().outcome == CancelOutcome.RECONCILED


def test_the_queue_waits_behind_an_interrupted_run_until_somebody_decides(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    behind = admission.admit(session.id, alice, turn("behind", multitask="enqueue"))
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    assert queue.claim(session.id, worker.id) is None
    operations.dismiss(alice, run.id)
    assert queue.claim(session.id, worker.id).id == behind.id


def test_resume_goes_to_the_head_of_the_queue(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    admission.admit(session.id, alice, turn("behind", multitask="enqueue"))
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    resumed = operations.resume(alice, run.id)

    assert resumed["resumes"] == str(run.id)
    assert str(queue.claim(session.id, worker.id).id) == resumed["id"]
    with pytest.raises(NotInterrupted):
        operations.resume(alice, run.id)


def test_a_new_message_dismisses_an_interrupted_run(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    new = admission.admit(session.id, alice, turn("go on"))

    run.refresh_from_db()
    assert run.resolution == "dismissed"
    assert queue.claim(session.id, worker.id).id == new.id
