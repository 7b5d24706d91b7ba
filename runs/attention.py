"""What an operator should look at now. Each query reads what is active or unknown only, however many runs
there have been."""

from collections import Counter
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from runs import liveness
from runs.models import Run, ToolCall, Worker
from runs.states import Effect, RunStatus

# Turns in the queue of one session that are more than somebody is likely to have typed ahead.
LONG_QUEUE = 5
# A tool call whose effect nobody knows is news for this long.
RECENT = timedelta(days=1)


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


def long_queues() -> list[UUID]:
    """The sessions with an unusual number of turns in their queues.

    Counted here: to group them, a database would rather go through the queues of all sessions there are.
    """
    queued = Run.objects.filter(status=RunStatus.QUEUED).values_list("session", flat=True)
    return [session for session, turns in Counter(queued).items() if turns >= LONG_QUEUE]
