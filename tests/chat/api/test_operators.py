"""What operators do over REST: look at the workers, end a run without its worker, bring one into order."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from runs.lifecycle import cancel_requests, liveness
from runs.models import AuditEntry, Cancellation, Run, Session, Worker
from runs.states import CancelOutcome, CancelSource, Resolution, RunStatus
from tests.chat.api.programs import a_run, error_of, open_session
from tests.chat.live import call, eventually

REASON = {"reason": "it hangs"}


def a_worker(*, gone: bool = False, **fields) -> Worker:
    """A worker that is this very process, or one whose process has ended."""
    host, boot = liveness.this_host()
    return Worker.objects.create(
        host=host,
        boot="an earlier boot" if gone else boot,
        pid=1,
        pid_started=liveness.process_started(1),
        version="1.0.0",
        **fields,
    )


def a_running_run(user, worker: Worker | None) -> Run:
    with transaction.atomic():
        run = Run.objects.get(id=a_run(user, RunStatus.RUNNING))
        run.worker, run.claim = worker, 1
        run.save()
    return run


def reconcile(program, run) -> dict:
    response = program.post(f"runs/{getattr(run, 'id', run)}/reconcile/", REASON)
    assert response.status_code == 200, response.content
    return response.json()


def test_the_workers_are_listed_longest_running_first_in_pages(as_olivia):
    now = timezone.now()
    ages = [timedelta(minutes=minutes) for minutes in (1, 3, 2)]
    workers = [a_worker(started_at=now - age, active_runs=2, stragglers=1) for age in ages]
    page = as_olivia.get("workers/?limit=2").json()
    assert [found["id"] for found in page["results"]] == [str(workers[1].id), str(workers[2].id)]
    assert set(page["results"][0]) == {
        "id", "host", "pid", "version", "started_at", "heartbeat_at", "active_runs", "stragglers",
    }  # fmt: skip
    assert (page["results"][0]["active_runs"], page["results"][0]["stragglers"]) == (2, 1)
    rest = as_olivia.get(page["next"].split("/api/")[1]).json()
    assert [found["id"] for found in rest["results"]] == [str(workers[0].id)]
    assert rest["next"] is None


async def test_the_worker_of_this_process_is_among_them(engine, olivia):
    found = (await call(olivia, "GET", "workers/")).json()["results"]
    assert [worker["id"] for worker in found] == [str(engine.id)]


def test_reconcile_interrupts_the_run_of_a_dead_worker_and_leaves_it_to_its_user(alice, as_olivia):
    run = a_running_run(alice, a_worker(gone=True))
    result = reconcile(as_olivia, run)
    assert (result["run"]["status"], result["run"]["resolution"]) == ("interrupted", None)
    assert result["changed"] is True
    assert "worker was lost" in " ".join(result["done"])


def test_reconcile_ends_a_run_whose_worker_nobody_knows_any_more(alice, as_olivia):
    run = a_running_run(alice, None)
    assert reconcile(as_olivia, run)["run"]["status"] == "interrupted"


def test_reconcile_cancels_the_run_of_a_dead_worker_once_a_cancel_was_accepted(alice, as_olivia):
    worker = a_worker()
    run = a_running_run(alice, worker)
    accepted = cancel_requests.request_cancel(run.id, source=CancelSource.USER, reason="", requested_by=alice)
    assert accepted.settled_at is None
    Worker.objects.filter(id=worker.id).update(boot="an earlier boot")
    result = reconcile(as_olivia, run)
    assert result["run"]["status"] == "cancelled"
    assert result["run"]["cancellation"]["outcome"] == CancelOutcome.RECONCILED
    assert not Cancellation.objects.filter(settled_at=None).exists()


def test_reconcile_leaves_the_run_of_a_living_worker_alone_and_says_so(alice, as_olivia):
    run = a_running_run(alice, a_worker())
    result = reconcile(as_olivia, run)
    assert (result["run"]["status"], result["changed"]) == ("running", False)
    assert "worker is alive" in " ".join(result["done"])


def test_reconcile_settles_a_cancel_that_a_living_worker_did_not_answer(alice, as_olivia):
    run = a_running_run(alice, a_worker())
    accepted = cancel_requests.request_cancel(run.id, source=CancelSource.USER, reason="", requested_by=alice)
    assert reconcile(as_olivia, run)["changed"] is False  # it has time left
    overdue = timezone.now() - timedelta(seconds=settings.RUNS_CANCEL_TIMEOUT + 1)
    Cancellation.objects.filter(id=accepted.id).update(accepted_at=overdue)
    result = reconcile(as_olivia, run)
    assert (result["run"]["status"], result["changed"]) == ("running", True)
    assert result["run"]["cancellation"]["outcome"] == CancelOutcome.TIMED_OUT
    assert as_olivia.post(f"runs/{run.id}/force-cancel/", REASON).json()["outcome"] == "reconciled"


def test_reconcile_dismisses_an_interrupted_run(alice, as_alice, as_olivia):
    session = open_session(alice)
    run = a_run(alice, RunStatus.INTERRUPTED, session)
    assert as_alice.get(f"sessions/{session}/").json()["status"] == "interrupted"
    result = reconcile(as_olivia, run)
    assert (result["changed"], result["run"]["resolution"]) == (True, Resolution.DISMISSED)
    assert as_alice.get(f"sessions/{session}/").json()["status"] == "idle"
    again = reconcile(as_olivia, run)
    assert (again["changed"], again["run"]) == (False, result["run"])
    assert "history in order" in " ".join(again["done"])


@pytest.mark.parametrize(
    "status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.WAITING, RunStatus.QUEUED]
)
def test_reconcile_finds_nothing_to_change_about_a_run_in_order(alice, as_olivia, status):
    run = a_run(alice, status)
    before = Run.objects.values().get(id=run)
    result = reconcile(as_olivia, run)
    assert (result["changed"], result["run"]["status"]) == (False, status)
    assert result["done"]
    assert Run.objects.values().get(id=run) == before


async def test_after_reconcile_the_next_message_is_answered(engine, model, alice, olivia):
    from runs.foundation.database import in_thread

    run = await in_thread(a_run, alice, RunStatus.INTERRUPTED)
    session = str((await Run.objects.aget(id=run)).session_id)
    answer = await call(olivia, "POST", f"runs/{run}/reconcile/", REASON)
    assert answer.status == 200
    started = await call(alice, "POST", f"sessions/{session}/runs/", {"input": "and now?"})
    next_run = started.json()["id"]

    async def is_over() -> bool:
        return (await Run.objects.aget(id=next_run)).status == RunStatus.COMPLETED

    await eventually(is_over)
    assert (await Run.objects.aget(id=run)).repaired


@pytest.mark.parametrize(("action", "path"), [("force_cancel", "force-cancel"), ("reconcile", "reconcile")])
def test_what_an_operator_does_to_somebodys_run_is_on_record(alice, as_alice, as_olivia, action, path):
    run = a_run(alice, RunStatus.INTERRUPTED if action == "reconcile" else RunStatus.QUEUED)
    assert as_alice.post(f"runs/{run}/{path}/", REASON).status_code == 403
    assert not AuditEntry.objects.exists()
    assert as_olivia.post(f"runs/{run}/{path}/", REASON).status_code == 200
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target, entry.reason) == ("olivia", action, run, "it hangs")
    assert entry.details


@pytest.mark.parametrize("path", ["force-cancel", "reconcile"])
@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": 5}, {"reason": "x" * 501}])
def test_an_operator_says_why(alice, as_olivia, path, body):
    run = a_run(alice, RunStatus.INTERRUPTED)
    assert error_of(as_olivia.post(f"runs/{run}/{path}/", body)) == (400, "invalid")
    assert not AuditEntry.objects.exists()
    assert not Session.objects.exclude(runs__resolution=None).exists()
