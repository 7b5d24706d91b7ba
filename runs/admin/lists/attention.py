"""Which runs need attention: as conditions of a query, and as signs beside a run."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from runs.lifecycle import liveness, predicates
from runs.models import Run, ToolCall, Worker
from runs.states import Effect, RunStatus

# Tool calls of unknown effect whose runs are shown.
CALLS = 10_000


def unattended() -> QuerySet[Run]:
    """Running without a beating worker."""
    lost = Q(worker=None) | ~Q(worker__in=liveness.beating())
    return Run.objects.filter(lost, status=RunStatus.RUNNING)


def needed() -> Q:
    """Stuck, with an overdue cancel, or not taken by any worker."""
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
    """The signs of each run, in words. The runs were read with their workers."""
    running = [run for run in runs if run.status == RunStatus.RUNNING]
    queued = [run for run in runs if run.status in (RunStatus.QUEUED, RunStatus.WAITING)]
    unclaimed_ids = _ids_among(predicates.unclaimed_runs(), queued)
    overdue_ids = _ids_among(
        predicates.runs_with_overdue_cancel(), [run for run in running if run.cancel_requested_at]
    )
    states = {run.worker: state_of(run.worker) for run in running if run.worker}
    found: dict[UUID, list[str]] = {run.id: [] for run in runs}
    for run in running:
        if now - run.last_event_at > predicates.silence():
            found[run.id].append("stuck")
        if run.cancel_requested_at:
            found[run.id].append("cancel overdue" if run.id in overdue_ids else "cancel pending")
        if run.worker is None or states[run.worker] in ("gone", "silent"):
            found[run.id].append("worker lost")
    for run in runs:
        if run.id in unclaimed_ids:
            found[run.id].append("not taken")
        elif run.is_undecided:
            found[run.id].append("undecided")
        if run.stragglers:
            found[run.id].append("still at work")
    return found


def _ids_among(condition: QuerySet[Run], runs: Sequence[Run]) -> set[UUID]:
    """The ids of those of these runs that meet the condition."""
    ids = [run.id for run in runs]
    return set(condition.filter(id__in=ids).values_list("id", flat=True)) if ids else set()


def state_of(worker: Worker) -> str:
    """The state of a worker: beating, leaving, silent, or gone when its process does not exist any more."""
    if liveness.is_gone(worker):
        return "gone"
    if timezone.now() - worker.heartbeat_at > liveness.patience():
        return "silent"
    return "leaving" if worker.leaving else "beating"
