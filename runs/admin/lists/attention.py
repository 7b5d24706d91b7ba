"""Which runs need somebody's attention, as conditions of a query and as words beside a run."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from runs.lifecycle import liveness, predicates
from runs.models import Run, ToolCall, Worker
from runs.states import Effect, RunStatus

# Tool calls of unknown effect whose runs are shown.
CALLS = 10_000


def stuck() -> Q:
    """Running without an event for too long, or without a worker that gives signs of life."""
    return Q(id__in=predicates.stuck_runs().values("id"))


def overdue() -> Q:
    """Running on although a cancel was accepted longer ago than a worker has time to answer."""
    return Q(id__in=predicates.runs_with_overdue_cancel().values("id"))


def untaken() -> Q:
    """In line, or answered, and no worker takes it."""
    return Q(id__in=predicates.unclaimed_runs().values("id"))


def undecided() -> Q:
    """Interrupted in the last day, and nobody has decided about it."""
    return Q(id__in=predicates.undecided_runs().values("id"))


def unattended() -> Q:
    """Running without a worker that gives signs of life."""
    lost = Q(worker=None) | ~Q(worker__in=liveness.beating())
    return Q(id__in=Run.objects.filter(lost, status=RunStatus.RUNNING).values("id"))


def hanging() -> Q:
    """Stuck, overdue or taken by nobody."""
    running = predicates.stuck_runs() | predicates.runs_with_overdue_cancel()
    running = running.filter(status=RunStatus.RUNNING)
    return Q(id__in=running.values("id").union(predicates.unclaimed_runs().values("id")))


def in_long_queue() -> Q:
    """In a queue of unusual length."""
    sessions, _ = predicates.long_queues()
    return Q(session__in=sessions, status=RunStatus.QUEUED)


def latest_of_unknown_effect() -> QuerySet[ToolCall]:
    """Tool calls that may have done their work, the latest first."""
    return ToolCall.objects.filter(effect=Effect.UNKNOWN).order_by("-started_at")


def signs(runs: Sequence[Run], now: datetime) -> dict[UUID, list[str]]:
    """The same of runs that were read with their workers, in words."""
    in_line = [run.id for run in runs if run.status in (RunStatus.QUEUED, RunStatus.WAITING)]
    untaken_ids: set[UUID] = set()
    if in_line:
        untaken_ids.update(predicates.unclaimed_runs().filter(id__in=in_line).values_list("id", flat=True))
    states = {run.worker: state_of(run.worker) for run in runs if run.worker and _is_running(run)}
    found = {}
    for run in runs:
        if _is_running(run):
            found[run.id] = _of_running(run, states[run.worker] if run.worker else "gone", now)
        elif run.id in untaken_ids:
            found[run.id] = ["not taken"]
        elif run.is_undecided:
            found[run.id] = ["undecided"]
        else:
            found[run.id] = []
    return found


def _is_running(run: Run) -> bool:
    return run.status == RunStatus.RUNNING


def _of_running(run: Run, worker_state: str, now: datetime) -> list[str]:
    found = []
    if now - run.last_event_at > predicates.silence():
        found.append("stuck")
    asked = run.cancel_requested_at
    if asked and now - asked > predicates.cancel_limit():
        found.append("cancel overdue")
    elif asked:
        found.append("cancel pending")
    if worker_state in ("gone", "silent"):
        found.append("worker lost")
    return found


def _is_silent(heartbeat_at: datetime, now: datetime) -> bool:
    """Whether a worker has missed so many heartbeats that it is taken for dead."""
    return now - heartbeat_at > timedelta(seconds=settings.RUNS_HEARTBEAT * liveness.MISSED_BEATS)


def state_of(worker: Worker) -> str:
    """A worker in a word: beating, leaving, silent, or gone when its process is not there any more."""
    if liveness.is_gone(worker):
        return "gone"
    if _is_silent(worker.heartbeat_at, timezone.now()):
        return "silent"
    return "leaving" if worker.leaving else "beating"
