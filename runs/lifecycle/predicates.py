"""Queries for what needs an operator's attention, and for what is overdue.

Each reads active or unknown rows only, however many runs there have been.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from runs.lifecycle import liveness
from runs.models import UNSETTLED, Cancellation, Run, ToolCall, Worker
from runs.states import Effect, RunStatus

# Turns in the queue of one session that are more than somebody is likely to have typed ahead.
LONG_QUEUE = 5
# So long after its time an unknown effect or an interrupted turn still needs attention.
RECENT = timedelta(days=1)
# Turns that are looked at in all queues together, however many there are.
QUEUED_LOOKED_AT = 10_000


def silence() -> timedelta:
    """How long a run may be without an event: the longest limit of any of its parts."""
    longest = max(settings.RUNS_IDLE_TIMEOUT, settings.RUNS_TOOL_TIMEOUT)
    return timedelta(seconds=longest + settings.RUNS_HEARTBEAT)


def stuck_runs() -> QuerySet[Run]:
    """Running runs whose worker does not beat, or that were silent for longer than any part of one may be."""
    silent = Q(last_event_at__lt=Now() - silence())
    lost = ~Q(worker__in=liveness.beating()) | Q(worker=None)
    return Run.objects.filter(silent | lost, status=RunStatus.RUNNING)


def cancel_limit() -> timedelta:
    """How long a cancel may take from its acceptance; after that it is overdue."""
    return timedelta(seconds=settings.RUNS_CANCEL_TIMEOUT)


def overdue_cancellations() -> QuerySet[Cancellation]:
    """Operations that their workers have not answered in time."""
    return Cancellation.objects.filter(UNSETTLED, accepted_at__lt=Now() - cancel_limit())


def runs_with_overdue_cancel() -> QuerySet[Run]:
    """Running runs whose cancel is overdue, whether or not its operation has timed out."""
    return Run.objects.filter(status=RunStatus.RUNNING, cancel_requested_at__lt=Now() - cancel_limit())


def dead_workers() -> QuerySet[Worker]:
    """Workers that have not beaten for so long that their runs are, or will be, taken from them."""
    return Worker.objects.exclude(id__in=liveness.beating())


def unknown_effects() -> QuerySet[ToolCall]:
    """Tool calls that began of late and whose effect is unknown."""
    return ToolCall.objects.filter(effect=Effect.UNKNOWN, started_at__gte=timezone.now() - RECENT)


def undecided_runs() -> QuerySet[Run]:
    """Runs that were interrupted of late and are undecided."""
    return Run.objects.undecided().filter(finished_at__gte=timezone.now() - RECENT)


def unclaimed_runs() -> QuerySet[Run]:
    """Claimable runs that no worker has claimed for longer than a sweep needs to offer them again."""
    return Run.objects.claimable().filter(
        id__in=Run.objects.awaiting_claim().values("id")[: QUEUED_LOOKED_AT + 1],
        session__updated_at__lt=Now() - liveness.patience(),
    )


def ahead_of_queues(sessions: Iterable[UUID]) -> dict[UUID, Run]:
    """By session, the run behind which its queue waits: running, waiting, or interrupted and undecided."""
    ahead = Run.objects.ahead_of_queues().filter(session__in=sessions)
    return {run.session_id: run for run in ahead.only("session", "status", "resolution")}


def long_queues() -> tuple[list[UUID], bool]:
    """The sessions with unusually long queues, and whether there may be more of them.

    At most QUEUED_LOOKED_AT queued turns are read. They are counted here, since a database would read the
    queues of all sessions to group them.
    """
    queued = Run.objects.filter(status=RunStatus.QUEUED).values_list("session", flat=True)
    found = list(queued[: QUEUED_LOOKED_AT + 1])
    turns_of = Counter(found[:QUEUED_LOOKED_AT])
    long = [session for session, turns in turns_of.items() if turns >= LONG_QUEUE]
    return long, len(found) > QUEUED_LOOKED_AT
