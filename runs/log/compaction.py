"""Retention: remove events from the logs of old runs, whose texts other events have.

``message.delta`` and ``tool.progress`` are removed: ``message.completed`` has the whole text. Every ``seq``
stays, and ``Run.compacted_to`` is the last one that was removed. A client with an earlier cursor gets
CursorGone.

No log needs the pieces of its messages once the run has ended. Some logs of older versions do, of runs that
were lost in the middle of a message. These are left alone.

It may run beside a working system, also in two processes at once. Each batch is a short transaction that
checks its runs again. After each it pauses as long as the batch took, so that turns keep half of the time for
writing. If it is stopped, it can be run again.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Max, QuerySet

from runs.models import Run, RunEvent
from runs.states import TERMINAL, EventType

REMOVED_TYPES = (EventType.MESSAGE_DELTA, EventType.TOOL_PROGRESS)
# Runs that are read at a time.
_PAGE = 500


@dataclass
class Compacted:
    """What was compacted, or would be."""

    runs: int = 0  # that had events to remove
    events: int = 0  # that were removed


def compact(before: datetime, batch: int, *, dry_run: bool = False) -> Iterator[Compacted]:
    """Compact the logs of runs that ended before then; yields what each batch did.

    A batch has the runs of about ``batch`` events, and at least one run. A dry run writes nothing.
    """
    for runs in _batches(before, batch):
        begun = time.monotonic()
        done = _count(runs) if dry_run else _compact(runs)
        yield done
        time.sleep(time.monotonic() - begun)


def compactable() -> QuerySet[Run]:
    """Runs whose log may be compacted."""
    return Run.objects.filter(compacted_to=None, status__in=TERMINAL)


def _batches(before: datetime, batch: int) -> Iterator[list[UUID]]:
    """Runs to compact, oldest first."""
    found = compactable().filter(finished_at__lt=before).order_by("finished_at", "id")
    runs: list[UUID] = []
    size = 0
    for run_id, last_seq in _sizes(found):
        if runs and size + last_seq > batch:
            yield runs
            runs, size = [], 0
        runs.append(run_id)
        size += last_seq
    if runs:
        yield runs


def _sizes(found: QuerySet[Run]) -> Iterator[tuple[UUID, int]]:
    """(run, number of its events) of each run found.

    They are read by pages, so that no database cursor stays open. Each page begins behind the last run of the
    one before, so that runs that were left alone are not read again.
    """
    page = list(found.values_list("id", "last_seq", "finished_at")[:_PAGE])
    while page:
        yield from ((run_id, last_seq) for run_id, last_seq, _ in page)
        last_id, _, last = page[-1]
        behind = found.filter(finished_at__gte=last).exclude(finished_at=last, id__lte=last_id)
        page = list(behind.values_list("id", "last_seq", "finished_at")[:_PAGE])


def _compact(run_ids: Sequence[UUID]) -> Compacted:
    with transaction.atomic():
        locked = compactable().filter(id__in=run_ids).select_for_update(no_key=True)
        runs = list(locked.only("id").order_by("id"))
        removable = _removable([run.id for run in runs])
        last = dict(removable.values_list("run").annotate(Max("seq")))
        for run in runs:
            run.compacted_to = last.get(run.id, 0)
        Run.objects.bulk_update(runs, ["compacted_to"])
        events, _ = removable.delete()
    return Compacted(len(last), events)


def _count(run_ids: Sequence[UUID]) -> Compacted:
    numbers = dict(_removable(run_ids).values_list("run").annotate(number=Count("*")))
    return Compacted(len(numbers), sum(numbers.values()))


def _removable(run_ids: Sequence[UUID]) -> QuerySet[RunEvent]:
    """The events of these runs that can be removed."""
    messages = RunEvent.objects.filter(
        run__in=run_ids, type__in=(EventType.MESSAGE_STARTED, EventType.MESSAGE_COMPLETED)
    ).values_list("run", "type", "data__message")
    started: set[tuple[UUID, str]] = set()
    completed: set[tuple[UUID, str]] = set()
    for run_id, type, message in messages:
        (started if type == EventType.MESSAGE_STARTED else completed).add((run_id, message))
    cut_off = {run_id for run_id, _ in started - completed}
    return RunEvent.objects.filter(run__in=set(run_ids) - cut_off, type__in=REMOVED_TYPES)
