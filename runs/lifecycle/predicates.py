"""What an operator should look at now. Each query reads what is active or unknown only, however many runs
there have been."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from runs.lifecycle import liveness
from runs.models import Run, Session, ToolCall, Worker
from runs.states import OCCUPYING, Effect, RunStatus

# Turns in the queue of one session that are more than somebody is likely to have typed ahead.
LONG_QUEUE = 5
# A tool call whose effect nobody knows, or an interrupted turn, is news for this long.
RECENT = timedelta(days=1)
# Turns that are looked at in all queues together, however many there are.
QUEUED_LOOKED_AT = 10_000

# Interrupted, and nobody has decided what becomes of it.
UNDECIDED = Q(status=RunStatus.INTERRUPTED, resolution__isnull=True)
# What the rest of its session's queue waits behind.
_AHEAD = Q(status__in=OCCUPYING) | UNDECIDED


def undecided() -> QuerySet[Run]:
    """Interrupted runs about which nobody has decided, at most one of a session."""
    return Run.objects.filter(UNDECIDED)


def undecided_in(session: Session) -> Run | None:
    """The session's interrupted run about which nobody has decided; nothing is claimed behind it.

    It need not be the latest: what was queued behind it and cancelled there has ended after it.
    """
    return undecided().filter(session=session).first()


def silence() -> timedelta:
    """How long a run may be without an event: no part of one may take longer."""
    longest = max(settings.RUNS_IDLE_TIMEOUT, settings.RUNS_TOOL_TIMEOUT)
    return timedelta(seconds=longest + settings.RUNS_HEARTBEAT)


def stuck_runs() -> QuerySet[Run]:
    """Running runs whose worker does not beat, or that were silent for longer than any part of one may be."""
    silent = Q(last_event_at__lt=Now() - silence())
    lost = ~Q(worker__in=liveness.beating()) | Q(worker=None)
    return Run.objects.filter(silent | lost, status=RunStatus.RUNNING)


def overdue_cancels() -> QuerySet[Run]:
    """Runs that run on although their cancel was accepted longer ago than one may take."""
    limit = timedelta(seconds=settings.RUNS_CANCEL_TIMEOUT)
    return Run.objects.filter(status=RunStatus.RUNNING, cancel_requested_at__lt=Now() - limit)


def dead_workers() -> QuerySet[Worker]:
    """Workers that have not beaten for so long that their runs are, or will be, taken from them."""
    return Worker.objects.exclude(id__in=liveness.beating())


def unknown_effects() -> QuerySet[ToolCall]:
    """Tool calls that began of late, of which nobody knows what they did."""
    return ToolCall.objects.filter(effect=Effect.UNKNOWN, started_at__gte=timezone.now() - RECENT)


def undecided_runs() -> QuerySet[Run]:
    """Runs that were interrupted of late, about which nobody has decided."""
    return Run.objects.filter(UNDECIDED, finished_at__gte=timezone.now() - RECENT)


def untaken_runs() -> QuerySet[Run]:
    """Runs that a worker could have taken for longer than a sweep needs to offer them again, and none has.

    That is the whole queue of a session in which nothing is ahead of it, and a run that was answered.
    """
    ahead = Run.objects.filter(_AHEAD, session=OuterRef("session"))
    queued = Q(status=RunStatus.QUEUED) & ~Exists(ahead)
    answered = Q(status=RunStatus.WAITING, answers__isnull=False)
    return Run.objects.filter(
        queued | answered,
        id__in=_queued_or_answered().values("id")[: QUEUED_LOOKED_AT + 1],
        session__updated_at__lt=Now() - liveness.patience(),
    )


def _queued_or_answered() -> QuerySet[Run]:
    is_one = Q(status=RunStatus.QUEUED) | Q(answers__isnull=False)
    return Run.objects.filter(is_one, status__in=(RunStatus.QUEUED, RunStatus.WAITING))


def ahead_of_queues(sessions: Iterable[UUID]) -> dict[UUID, Run]:
    """By session, the run behind which its queue waits: running, waiting, or interrupted and undecided."""
    ahead = Run.objects.filter(_AHEAD, session__in=sessions)
    return {run.session_id: run for run in ahead.only("session", "status", "resolution")}


def long_queues() -> tuple[list[UUID], bool]:
    """The sessions with an unusual number of turns in their queues, and whether there may be others: no more
    than QUEUED_LOOKED_AT turns are looked at.

    Counted here: to group them, a database would rather go through the queues of all sessions there are.
    """
    queued = Run.objects.filter(status=RunStatus.QUEUED).values_list("session", flat=True)
    found = list(queued[: QUEUED_LOOKED_AT + 1])
    turns_of = Counter(found[:QUEUED_LOOKED_AT])
    long = [session for session, turns in turns_of.items() if turns >= LONG_QUEUE]
    return long, len(found) > QUEUED_LOOKED_AT
