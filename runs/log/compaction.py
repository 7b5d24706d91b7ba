"""Retention: the logs of old runs become compact.

It works beside a running system, also in two processes at once: each batch is one short transaction that
looks again at what it takes, and after each there is a pause as long as the batch took, so that at most half
of a database's time for writing is taken from the turns. What breaks off can be done again.

What goes are ``message.delta`` and ``tool.progress``. The log's ``message.completed`` have
the whole texts, every ``seq`` stays what it was, and ``Run.compacted_to`` tells up to where events are
missing; who comes with a cursor before that gets CursorGone. Left alone are runs whose history is still read
from the log, which are those not repaired yet, and runs that were cut off in the middle of a message: the
deltas are all that is left of its words.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Max, QuerySet

from runs.models import Run, RunEvent
from runs.states import TERMINAL, EventType

GOING = (EventType.MESSAGE_DELTA, EventType.TOOL_PROGRESS)
# Runs that are looked up at a time.
_PAGE = 500


@dataclass
class Compacted:
    """What compacting did, or would do."""

    runs: int = 0  # whose logs are compact now
    events: int = 0  # that are gone


def compact(before: datetime, batch: int, *, dry_run: bool = False) -> Iterator[Compacted]:
    """Compact the logs of runs that ended before then; what each batch did.

    A batch has the runs of about ``batch`` events, and at least one. In a dry run nothing is written.
    """
    for runs in _batches(before, batch):
        begun = time.monotonic()
        done = _count(runs) if dry_run else _compact(runs)
        yield done
        time.sleep(time.monotonic() - begun)


def compactable() -> QuerySet[Run]:
    """Runs whose log may lose what is said elsewhere: their history is in the checkpoint."""
    return Run.objects.filter(compacted_to=None, status__in=TERMINAL, repaired=True)


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
    """The runs and how many events each has had.

    Read a page at a time, so that no cursor stays open, each from behind the last one: what was left alone
    is not met again.
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
        going = _going([run.id for run in runs])
        last = dict(going.values_list("run").annotate(Max("seq")))
        for run in runs:
            run.compacted_to = last.get(run.id, 0)
        Run.objects.bulk_update(runs, ["compacted_to"])
        events, _ = going.delete()
    return _told(last, events)


def _count(run_ids: Sequence[UUID]) -> Compacted:
    numbers = dict(_going(run_ids).values_list("run").annotate(number=Count("*")))
    return _told(numbers, sum(numbers.values()))


def _told(touched: Collection[UUID], events: int) -> Compacted:
    return Compacted(len(touched), events)


def _going(run_ids: Sequence[UUID]) -> QuerySet[RunEvent]:
    """The events of these runs that are said elsewhere in their logs."""
    messages = RunEvent.objects.filter(
        run__in=run_ids, type__in=(EventType.MESSAGE_STARTED, EventType.MESSAGE_COMPLETED)
    ).values_list("run", "type", "data__message")
    started: set[tuple[UUID, str]] = set()
    completed: set[tuple[UUID, str]] = set()
    for run_id, type, message in messages:
        (started if type == EventType.MESSAGE_STARTED else completed).add((run_id, message))
    cut_off = {run_id for run_id, _ in started - completed}
    return RunEvent.objects.filter(run__in=set(run_ids) - cut_off, type__in=GOING)
