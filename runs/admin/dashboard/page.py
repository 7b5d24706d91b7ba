"""The dashboard on the admin's front page: charts of what the engine did, and what needs attention.

Each part needs the permission to view its models, and is absent without it. The page asks for the same markup
again every few seconds (``static/admin/dashboard/dashboard.js``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from runs.admin.dashboard import queries
from runs.admin.dashboard.charts import Chart, Series
from runs.admin.formatting import count
from runs.lifecycle import liveness, predicates
from runs.models import Cancellation, Run, Session, ToolCall, Worker
from runs.states import TERMINAL, RunStatus

DAYS = 30
AGENTS = 5  # with a series of their own in the chart; the table has all of them
WORKERS = 20  # in the chart, the busiest ones; the table has twice as many
COUNTED = 10_000  # rows at most, of each check
BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)  # seconds a cancel may have taken


@dataclass(frozen=True, slots=True)
class Cell:
    """A field of a table."""

    text: str
    url: str = ""  # the list behind it


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart with the table of its numbers."""

    key: str  # unique on the page
    title: str
    summary: str  # the chart in one sentence
    chart: Chart
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]  # each begins with its name
    url: str = ""
    latest_last: bool = False  # on a narrow screen the end of the chart is shown first


@dataclass(frozen=True, slots=True)
class Check:
    """Something that may need attention."""

    name: str
    count: int
    why: str  # why it matters, or what to do
    url: str
    or_more: bool = False  # only so many were read, and there may be others

    @property
    def told(self) -> str:
        """How many, in words."""
        return f"{'at least ' if self.or_more else ''}{self.count:,}"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What one user may see."""

    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def news(self) -> str:
        """What needs attention, as one sentence."""
        found = [f"{check.name.lower()}: {check.told}" for check in self.checks if check.count]
        return f"Needs attention: {', '.join(found)}." if found else "Nothing needs attention."


def fragment(request: HttpRequest) -> HttpResponse:
    """The dashboard alone, for a page that shows it already."""
    return render(request, "admin/dashboard/dashboard.html", {"dashboard": of(request.user)})


def of(user: Any) -> Dashboard:
    """The dashboard of this user, as of now."""
    return Dashboard(list(_checks(user)), list(_figures(user)))


def _may_view(user: Any, *models: type[Model]) -> bool:
    return all(user.has_perm(f"runs.view_{model._meta.model_name}") for model in models)


def _list_of(model: type[Model], **filters: str) -> str:
    """The address of the list of this model, empty when the admin has none."""
    try:
        address = reverse(f"admin:runs_{model._meta.model_name}_changelist")
    except NoReverseMatch:
        return ""
    return f"{address}?{urlencode(filters)}" if filters else address


# What needs attention


def _checks(user: Any) -> Iterator[Check]:
    if _may_view(user, Run):
        yield _counted(
            "Stuck runs",
            predicates.stuck_runs(),
            "Their worker does not beat, or they were silent for too long. Reconcile or force-cancel them.",
            _list_of(Run, attention="stuck"),
        )
        yield _counted(
            "Overdue cancels",
            predicates.runs_with_overdue_cancel(),
            "These runs were to be cancelled and run on. Force-cancel ends them without their worker.",
            _list_of(Run, attention="cancel_overdue"),
        )
        yield _counted(
            "Turns nobody takes",
            predicates.unclaimed_runs(),
            f"Nothing is ahead of them, and no worker takes them. {_what_takers_there_are()}",
            _list_of(Run, attention="untaken"),
        )
    if _may_view(user, Worker):
        yield _counted(
            "Dead workers",
            predicates.dead_workers(),
            "Processes that have stopped beating. Their runs are taken from them by the next sweep.",
            _list_of(Worker),
        )
    if _may_view(user, Run):
        yield _counted(
            "Interrupted turns",
            predicates.undecided_runs(),
            "Of the last day, and nobody has decided about them. Their users can; so do Resume and Dismiss.",
            _list_of(Run, attention="undecided"),
        )
    if _may_view(user, Run, ToolCall):
        yield _counted(
            "Unknown effects",
            predicates.unknown_effects(),
            "Tool calls of the last day that began and were given up: they may have done part of their work.",
            _list_of(Run, attention="effect_unknown"),
        )
    if _may_view(user, Run, Session):
        queues, or_more = predicates.long_queues()
        yield Check(
            "Long queues",
            len(queues),
            f"Sessions with {predicates.LONG_QUEUE} or more turns in line.",
            _list_of(Run, attention="long_queue"),
            or_more,
        )


def _counted(name: str, rows: QuerySet[Any], why: str, url: str) -> Check:
    found = rows.order_by()[: COUNTED + 1].count()
    return Check(name, min(found, COUNTED), why, url, or_more=found > COUNTED)


def _what_takers_there_are() -> str:
    if takers := len(liveness.taking_turns()):
        return f"{count(takers, 'worker')} could: Reconcile offers them again."
    return "There is none that could: start one, or cancel what nobody should wait for."


# Charts


def _figures(user: Any) -> Iterator[Figure]:
    if _may_view(user, Run):
        days = queries.latest_days(DAYS)
        totals = queries.by_day(days)
        yield _outcomes(days, totals)
        yield _tokens(days, totals, _list_of(Session) if _may_view(user, Session) else "")
    if _may_view(user, Cancellation):
        yield _cancels()
    if _may_view(user, Run, Worker):
        yield _workers()


def _outcomes(days: Sequence[Any], totals: Sequence[queries.DayTotal]) -> Figure:
    counts = {(day, status): 0 for day in days for status in TERMINAL}
    for total in totals:
        counts[total.day, RunStatus(total.status)] += total.runs
    series = [Series(status.label, [counts[day, status] for day in days]) for status in TERMINAL]
    sums = [sum(one.values) for one in series]
    by_status = ", ".join(f"{number:,} {one.name.lower()}" for one, number in zip(series, sums, strict=True))
    return Figure(
        key="outcomes",
        title="Runs by outcome",
        summary=f"{count(sum(sums), 'run')} ended in the last {DAYS} days: {by_status}.",
        chart=Chart([_short(day) for day in days], series),
        head=[
            Cell("Day"),
            *(Cell(status.label, _list_of(Run, status__exact=status)) for status in TERMINAL),
            Cell("All"),
        ],
        rows=[
            _row(_long(day), *numbers, sum(numbers))
            for day in reversed(days)
            for numbers in [[counts[day, status] for status in TERMINAL]]
        ],
        url=_list_of(Run),
        latest_last=True,
    )


def _tokens(days: Sequence[Any], totals: Sequence[queries.DayTotal], url: str) -> Figure:
    tokens: dict[str, dict[Any, list[int]]] = {}
    for total in totals:
        of_agent = tokens.setdefault(total.agent, {day: [0, 0] for day in days})
        of_agent[total.day][0] += total.input_tokens
        of_agent[total.day][1] += total.output_tokens
    sums = {agent: sum(map(sum, of_day.values())) for agent, of_day in tokens.items()}
    agents = sorted(sums, key=lambda agent: (-sums[agent], agent))
    series = [Series(agent, [sum(tokens[agent][day]) for day in days]) for agent in agents[:AGENTS]]
    if others := agents[AGENTS:]:
        series.append(Series("others", [sum(sum(tokens[agent][day]) for agent in others) for day in days]))
    by_agent = ", ".join(f"{one.name} {sum(one.values):,}" for one in series)
    return Figure(
        key="tokens",
        title="Tokens by day and agent",
        summary=f"{sum(sums.values()):,} tokens in the last {DAYS} days{by_agent and ': '}{by_agent}.",
        chart=Chart([_short(day) for day in days], series),
        head=[Cell("Day and agent"), Cell("Input tokens"), Cell("Output tokens"), Cell("Both")],
        rows=[
            _row(f"{_long(day)}, {agent}", *numbers, sum(numbers))
            for day in reversed(days)
            for agent in agents
            if any(numbers := tokens[agent][day])
        ],
        url=url,
        latest_last=True,
    )


def _cancels() -> Figure:
    latency = queries.cancel_latency(timezone.now() - timedelta(days=DAYS), BUCKETS)
    names = [f"≤ {_seconds(bound)}" for bound in BUCKETS] + [f"> {_seconds(BUCKETS[-1])}"]
    counts = dict(zip(names, latency.counts, strict=True))
    if latency.median is None or latency.most is None or latency.longest is None:
        summary = f"No cancel settled in the last {DAYS} days."
    else:
        of_latest = "the latest " if latency.total == queries.LATEST_CANCELS else ""
        summary = (
            f"{of_latest}{count(latency.total, 'cancel')} of the last {DAYS} days:"
            f" half of them settled within {_seconds(latency.median)},"
            f" 95 of 100 within {_seconds(latency.most)}, the slowest took {_seconds(latency.longest)}."
        )
    return Figure(
        key="cancels",
        title="Time a cancel takes to settle",
        summary=summary,
        chart=Chart.single("cancels", counts),
        head=[Cell("Time"), Cell("Cancels")],
        rows=[_row(name, number) for name, number in counts.items()],
        url=_list_of(Cancellation),
    )


def _workers() -> Figure:
    active = queries.active_by_worker()
    found = sorted(Worker.objects.all()[:1000], key=lambda worker: (-active.get(worker.id, 0), str(worker)))
    beating = set(liveness.beating().values_list("id", flat=True))
    numbers = {worker: (active.get(worker.id, 0), worker.stragglers) for worker in found}
    shown = found[:WORKERS]
    running, straggling = sum(active.values()), sum(worker.stragglers for worker in found)
    parts = [f"{count(running, 'run')} executed by {count(len(found), 'worker')}"]
    if lost := active.get(None):
        parts.append(f"{lost:,} of them by none that is known any more")
    parts.append(f"{count(straggling, 'straggler')} of runs that were given up at work")
    return Figure(
        key="workers",
        title="Active runs and stragglers by worker",
        summary=f"{', '.join(parts)}.",
        chart=Chart(
            list(map(str, shown)),
            [
                Series("active runs", [numbers[worker][0] for worker in shown]),
                Series("stragglers", [numbers[worker][1] for worker in shown]),
            ],
            stacked=False,
        ),
        head=[
            Cell("Worker"),
            Cell("Active runs", _list_of(Run, status__exact=RunStatus.RUNNING)),
            Cell("Stragglers"),
            Cell("State"),
        ],
        rows=[
            [
                Cell(str(worker), _list_of(Run, worker=str(worker.id))),
                *_row("", *numbers[worker])[1:],
                Cell(_state(worker, worker.id in beating)),
            ]
            for worker in found[: 2 * WORKERS]
        ],
        url=_list_of(Worker),
    )


# Words


def _row(name: str, *numbers: int) -> list[Cell]:
    return [Cell(name), *(Cell(f"{number:,}") for number in numbers)]


def _short(day: Any) -> str:
    return f"{day.day} {day:%b}"


def _long(day: Any) -> str:
    return f"{day:%a} {day.day} {day:%b %Y}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _state(worker: Worker, is_beating: bool) -> str:
    if not is_beating:
        return "does not beat"
    return "leaving" if worker.leaving else "works"


view = admin.site.admin_view(fragment)
