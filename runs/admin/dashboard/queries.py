"""The numbers of the dashboard, read from the stored runs, cancellations and daily totals.

Days are those of the configured time zone, and have 23, 24 or 25 hours. The runs of deleted sessions come
from ``DailyTotal`` in the same statement, so a deletion in between neither doubles nor loses a run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from math import ceil
from typing import Any, TypeAlias

from django.conf import settings
from django.core.cache import cache
from django.db.models import Count, IntegerField, QuerySet, Sum, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from runs.models import Cancellation, DailyTotal, Run
from runs.states import RunStatus

# The numbers of a past day are cached for so many seconds. They hardly change any more.
CLOSED_DAY_LASTS = 60
# The distribution is that of so many cancels, the latest ones. No more are read.
LATEST_CANCELS = 2_000

_NUMBERS = ("runs", "input_tokens", "output_tokens")

Rows: TypeAlias = list[tuple[str, str, int, int, int]]


@dataclass(frozen=True, slots=True)
class DayTotal:
    """The sums of the runs of one agent that ended on one day with one status."""

    day: date
    agent: str
    status: str
    runs: int
    input_tokens: int
    output_tokens: int


def latest_days(number: int) -> list[date]:
    """The last days up to today."""
    today = timezone.localdate()
    return [today - timedelta(days=ago) for ago in reversed(range(number))]


def bounds(day: date) -> tuple[datetime, datetime]:
    """The moments at which a day begins and at which the next one does."""
    zone = timezone.get_default_timezone()
    begin, end = (datetime.combine(one, time.min, zone) for one in (day, day + timedelta(days=1)))
    return begin, end


def by_day(days: Sequence[date]) -> list[DayTotal]:
    """All that ended on these days, in their order; a day without an ended run has no row."""
    kept: dict[str, Rows] = cache.get_many([_key(day) for day in days if day < timezone.localdate()])
    missing = [day for day in days if _key(day) not in kept]
    found = _read(missing) if missing else {}
    over = {_key(day): found[day] for day in missing if day < timezone.localdate()}
    cache.set_many(over, CLOSED_DAY_LASTS)
    rows = {day: found[day] if day in found else kept[_key(day)] for day in days}
    return [DayTotal(day, *row) for day in days for row in rows[day]]


def _key(day: date) -> str:
    return f"figures:{settings.TIME_ZONE}:{day}"


def _read(days: Sequence[date]) -> dict[date, Rows]:
    """The rows of each day: one statement that reads nothing but an index and the totals."""
    sums: dict[tuple[int, str, str], list[int]] = {}
    first, *others = _parts(days)
    for number, agent, status, *numbers in first.union(*others, all=True):
        before = sums.get((number, agent, status), (0, 0, 0))
        sums[number, agent, status] = [one + more for one, more in zip(before, numbers, strict=True)]
    rows: dict[date, Rows] = {day: [] for day in days}
    for (number, agent, status), (runs, tokens_in, tokens_out) in sorted(sums.items()):
        rows[days[number]].append((agent, status, runs, tokens_in, tokens_out))
    return rows


def _parts(days: Iterable[date]) -> Iterable[QuerySet[Any, Any]]:
    for number, day in enumerate(days):
        place = Value(number, IntegerField())
        begin, end = bounds(day)
        yield (
            Run.objects.filter(finished_at__gte=begin, finished_at__lt=end)
            .order_by()
            .values_list(place, "agent", "status")
            .annotate(
                runs=Count("*"),
                tokens_in=Coalesce(Sum("input_tokens"), 0),
                tokens_out=Coalesce(Sum("output_tokens"), 0),
            )
        )
        yield DailyTotal.objects.filter(day=day).order_by().values_list(place, "agent", "status", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class CancelLatency:
    """The times that cancels took from their acceptance until they settled."""

    bounds: tuple[float, ...]  # seconds, ascending
    counts: tuple[int, ...]  # of cancels up to each bound, and of those above the last
    median: float | None  # seconds; None without any cancel
    most: float | None  # seconds within which 95 of 100 settled
    longest: float | None  # seconds

    @property
    def total(self) -> int:
        return sum(self.counts)


def cancel_latency(since: datetime, bounds: tuple[float, ...]) -> CancelLatency:
    """The latency of settled cancels that were accepted since then; of the latest ones if there are many."""
    settled = Cancellation.objects.filter(accepted_at__gte=since, settled_at__isnull=False)
    latest = settled.order_by("-accepted_at", "-id").values_list("accepted_at", "settled_at")
    took = sorted((end - begin).total_seconds() for begin, end in latest[:LATEST_CANCELS] if end)
    counts = [0] * (len(bounds) + 1)
    for seconds in took:
        counts[next((place for place, bound in enumerate(bounds) if seconds <= bound), len(bounds))] += 1
    return CancelLatency(bounds, tuple(counts), _share(took, 0.5), _share(took, 0.95), _share(took, 1))


def _share(ordered: Sequence[float], share: float) -> float | None:
    """The smallest number that this share of all does not exceed."""
    return ordered[ceil(len(ordered) * share) - 1] if ordered else None


def active_by_worker() -> dict[Any, int]:
    """Runs in execution by the id of their worker; None for those whose worker is gone."""
    running = Run.objects.filter(status=RunStatus.RUNNING).order_by().values_list("worker")
    return dict(running.annotate(runs=Count("*")))
