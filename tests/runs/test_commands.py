"""The operator's commands, called as manage.py calls them."""

import os
import subprocess
import sys
from io import StringIO
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from runs.lifecycle import admission, endings, liveness, queue
from runs.models import Cancellation, Run, Session, Worker
from tests import ROOT
from tests.runs.servers import NO_PROCESS

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(db):
    host, boot = liveness.this_host()
    pid = os.getpid()
    started = liveness.process_started(pid)
    return Worker.objects.create(host=host, boot=boot, pid=pid, pid_started=started, version="test")


@pytest.fixture
def run(alice):
    """A queued run of alice's."""
    session = Session.objects.create(owner=alice, agent="assistant")
    turn = admission.Turn.checked(
        "go", multitask="reject", on_disconnect="continue", stream_modes=(), key=None
    )
    return admission.admit(session.id, alice, turn)


def said(*arguments):
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue().strip()


def test_reconcile_runs_says_what_it_did(run, worker):
    queue.claim(run.session_id, worker.id)
    Worker.objects.update(pid=NO_PROCESS)

    first, second = said("reconcile_runs"), said("reconcile_runs")

    assert first.startswith("workers lost: 1, runs interrupted: 1, ")
    assert second.startswith("workers lost: 0, runs interrupted: 0, ")
    run.refresh_from_db()
    assert run.status == "interrupted"


def test_a_lost_worker_that_had_many_runs_is_taken_off_the_list_by_and_by(alice, run, worker, monkeypatch):
    monkeypatch.setattr("runs.recovery.sweep._TAKEN_OFF", 2)
    queue.claim(run.session_id, worker.id)
    session = Session.objects.create(owner=alice, agent="assistant")
    ended = {"status": "completed", "finished_at": timezone.now(), "worker": worker}
    for place in range(5):
        Run.objects.create(session=session, agent="assistant", queue_place=place, position=place + 1, **ended)
    Worker.objects.update(pid=NO_PROCESS)

    assert said("reconcile_runs").startswith("workers lost: 0, runs interrupted: 1, ")
    assert Run.objects.filter(worker=worker).count() == 4
    assert said("reconcile_runs").startswith("workers lost: 0, runs interrupted: 0, ")
    assert said("reconcile_runs").startswith("workers lost: 0, runs interrupted: 0, ")
    assert said("reconcile_runs").startswith("workers lost: 1, runs interrupted: 0, ")

    assert not Worker.objects.exists()
    assert Run.objects.filter(worker=None).count() == 6


def test_reconcile_runs_leaves_living_workers_alone(run, worker):
    queue.claim(run.session_id, worker.id)

    said("reconcile_runs")

    run.refresh_from_db()
    assert run.status == "running"


def test_cancel_run_ends_a_queued_run_at_once(run):
    assert said("cancel_run", str(run.id), "--reason", "It is the wrong one.") == "The run is cancelled."

    recorded = Cancellation.objects.get()
    assert (recorded.source, recorded.reason, recorded.outcome) == (
        "operator",
        "It is the wrong one.",
        "cancelled",
    )


def test_cancel_run_records_the_acceptance_for_a_living_worker(run, worker):
    queue.claim(run.session_id, worker.id)

    assert said("cancel_run", str(run.id)) == "Cancel accepted: the run's worker is stopping it."

    run.refresh_from_db()
    assert run.cancel_requested_at is not None
    assert Cancellation.objects.get().settled_at is None


def test_cancel_run_ends_the_run_of_a_dead_worker(run, worker):
    queue.claim(run.session_id, worker.id)
    Worker.objects.update(pid=NO_PROCESS)

    assert said("cancel_run", str(run.id)).startswith("The run is cancelled; it had no worker")


def test_cancel_run_of_what_has_ended_is_a_success_that_says_so(run, worker):
    claimed = queue.claim(run.session_id, worker.id)
    endings.finish(run.id, claimed.claim, "completed")

    assert said("cancel_run", str(run.id)) == "Nothing to cancel: the run had already ended as completed."
    assert not Cancellation.objects.exists()
    assert Run.objects.get().status == "completed"


@pytest.mark.parametrize("unknown", [str(UUID(int=1)), "no id"])
def test_cancel_run_names_an_id_it_does_not_know(db, unknown):
    with pytest.raises(CommandError, match=unknown):
        said("cancel_run", unknown)


def test_a_callback_that_ends_the_loop_ends_the_worker_at_once(tmp_path):
    environment = {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "SECRET_KEY": "worker-under-test",
        "DATA_DIR": str(tmp_path),
        "RUNS_DRAIN_TIMEOUT": "1000",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.worker_under_test"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Worker:" in done.stdout
    assert "The event loop has ended." in done.stderr
