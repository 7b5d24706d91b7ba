"""Which runs need somebody's attention, as conditions of a query and as words beside a run."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from runs import attention, liveness
from runs.models import Run, ToolCall, Worker
from runs.states import Effect, RunStatus

# Tool calls of unknown effect whose runs are shown.
CALLS = 10_000


def stuck() -> Q:
    """Running without an event for too long, or without a worker that gives signs of life."""
    return Q(id__in=attention.stuck_runs().values("id"))


def overdue() -> Q:
    """Running on although a cancel was accepted longer ago than a worker has time to answer."""
    return Q(id__in=attention.overdue_cancels().values("id"))


def unattended() -> Q:
    """Running without a worker that gives signs of life."""
    lost = Q(worker=None) | ~Q(worker__in=liveness.beating())
    return Q(id__in=Run.objects.filter(lost, status=RunStatus.RUNNING).values("id"))


def hanging() -> Q:
    """Any of these."""
    either = attention.stuck_runs() | attention.overdue_cancels()
    return Q(id__in=either.filter(status=RunStatus.RUNNING).values("id"))


def latest_of_unknown_effect() -> QuerySet[ToolCall]:
    """Tool calls that may have done their work, the latest first."""
    return ToolCall.objects.filter(effect=Effect.UNKNOWN).order_by("-started_at")


def signs(run: Run, now: datetime) -> list[str]:
    """The same of a run that was read with its worker, in words."""
    if run.status != RunStatus.RUNNING:
        return []
    found = []
    if now - run.last_event_at > attention.silence():
        found.append("stuck")
    asked = run.cancel_requested_at
    if asked and now - asked > timedelta(seconds=settings.RUNS_CANCEL_TIMEOUT):
        found.append("cancel overdue")
    elif asked:
        found.append("cancel pending")
    if run.worker is None or is_silent(run.worker.heartbeat_at, now):
        found.append("worker lost")
    return found


def is_silent(heartbeat_at: datetime, now: datetime) -> bool:
    """Whether a worker has missed so many heartbeats that it is taken for dead."""
    return now - heartbeat_at > timedelta(seconds=settings.RUNS_HEARTBEAT * liveness.MISSED_BEATS)


def state_of(worker: Worker) -> str:
    """A worker in a word: beating, leaving, silent, or gone when its process is not there any more."""
    if liveness.is_gone(worker):
        return "gone"
    if is_silent(worker.heartbeat_at, timezone.now()):
        return "silent"
    return "leaving" if worker.leaving else "beating"
