"""The timeline of a run, from its log: queueing, LLM calls, tool calls, waits and cancels.

Each is a bar on a common scale, with its numbers. An LLM call begins with its first words, because the log
does not have its request; the gap before the bar is the time until the first words.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db.models.fields.json import KT

from runs.admin.formatting import span
from runs.log.transcript import note_id
from runs.models import Cancellation, Run, RunEvent
from runs.states import TERMINAL, EventType, RunStatus

# So many events are read, which make some hundred bars.
LIMIT = 600
# Width of the picture in its own units.
WIDTH = 1000
# A running run without an event for so many seconds gets a bar for its silence.
_SILENCE = 5.0

_BOUNDS = (
    EventType.RUN_STARTED,
    EventType.MESSAGE_STARTED,
    EventType.MESSAGE_COMPLETED,
    EventType.TOOL_STARTED,
    EventType.TOOL_COMPLETED,
    EventType.TOOL_FAILED,
    EventType.TOOL_CANCELLED,
    EventType.RUN_WAITING,
    EventType.RUN_ANSWERED,
)
_TOOL_ENDS = {
    EventType.TOOL_COMPLETED: "completed",
    EventType.TOOL_FAILED: "failed",
    EventType.TOOL_CANCELLED: "cancelled",
}


class Bound(NamedTuple):
    """An event that begins or ends something."""

    type: str
    at: datetime
    message: str | None
    call: str | None
    name: str | None
    role: str | None


@dataclass(slots=True)
class Stretch:
    """One thing that took time."""

    kind: str  # queue, llm, tool, wait, cancel, silence
    label: str
    start: datetime
    end: datetime | None  # None while it lasts
    outcome: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch as it is drawn and written."""

    kind: str
    label: str
    outcome: str
    start: str  # since the run was admitted
    took: str
    lasts: bool
    x: float  # of WIDTH
    width: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """All bars, and the scale they are drawn on."""

    bars: list[Bar]
    marks: list[tuple[float, str]]  # x of WIDTH, and the time there
    is_cut: bool  # there are more events than are read


def of(run: Run, cancellations: Sequence[Cancellation], now: datetime) -> Timeline:
    """The timeline of a run, read in one query."""
    events = list(_bounds(run))
    stretches = [
        *_waits_in_line(run),
        *stretches_of(events[:LIMIT], note_id(run.id)),
        *_cancels(cancellations),
    ]
    if run.status == RunStatus.RUNNING and (now - run.last_event_at).total_seconds() > _SILENCE:
        stretches.append(Stretch("silence", "No event", run.last_event_at, None, "silent"))
    if run.status in TERMINAL:
        for one in stretches:
            if one.end is None:  # its end is not in the log, but there was one
                one.end, one.outcome = run.finished_at, run.status
    stretches.sort(key=lambda one: one.start)
    end = run.finished_at if run.status in TERMINAL and run.finished_at else now
    return Timeline(*draw(stretches, run.created_at, end), is_cut=len(events) > LIMIT)


def _bounds(run: Run) -> Iterator[Bound]:
    events = RunEvent.objects.filter(run=run, type__in=_BOUNDS).order_by("seq")
    keys = {
        "said_key": KT("data__message"),
        "call_key": KT("data__tool_call"),
        "name_key": KT("data__name"),
        "role_key": KT("data__role"),
    }
    # The data itself stays where it is: a result may be long.
    for row in events.annotate(**keys).values_list("type", "at", *keys)[: LIMIT + 1]:
        yield Bound(*row)


def stretches_of(events: Iterable[Bound], note: str) -> list[Stretch]:
    """LLM calls, tool calls and waits, in the order in which they began; ``note`` is not a model's."""
    found: list[Stretch] = []
    llm: dict[str | None, Stretch] = {}
    tools: dict[str | None, Stretch] = {}
    wait: Stretch | None = None
    for event in events:
        match event.type:
            case EventType.MESSAGE_STARTED if event.role == "assistant" and event.message != note:
                llm[event.message] = Stretch("llm", "LLM call", event.at, None, "streaming")
                found.append(llm[event.message])
            case EventType.MESSAGE_COMPLETED if event.message in llm:
                _close(llm.pop(event.message), event.at, "completed")
            case EventType.TOOL_STARTED:
                tools[event.call] = Stretch("tool", event.name or "tool", event.at, None, "running")
                found.append(tools[event.call])
            case EventType.TOOL_COMPLETED | EventType.TOOL_FAILED | EventType.TOOL_CANCELLED:
                if event.call in tools:
                    _close(tools.pop(event.call), event.at, _TOOL_ENDS[EventType(event.type)])
            case EventType.RUN_WAITING:
                wait = Stretch("wait", "Waiting for an answer", event.at, None, "waiting")
                found.append(wait)
            case EventType.RUN_ANSWERED if wait is not None:
                _close(wait, event.at, "answered")
                wait = None
    return found


def draw(
    stretches: Sequence[Stretch], start: datetime, end: datetime
) -> tuple[list[Bar], list[tuple[float, str]]]:
    """Bars and marks on the scale from ``start`` to ``end``."""
    whole = max((end - start).total_seconds(), 0.001)

    def x(at: datetime) -> float:
        return round(min(max((at - start).total_seconds() / whole, 0), 1) * WIDTH, 1)

    bars = []
    for one in stretches:
        left, right = x(one.start), x(one.end or end)
        width = max(right - left, 3)  # also the shortest is visible
        bars.append(
            Bar(
                one.kind,
                one.label,
                one.outcome,
                f"+{span((one.start - start).total_seconds())}",
                span(((one.end or end) - one.start).total_seconds()),
                one.end is None,
                min(left, WIDTH - width),
                round(width, 1),
            )
        )
    marks = [(WIDTH * part / 4, span(whole * part / 4)) for part in range(5)]
    return bars, marks


def _close(stretch: Stretch, at: datetime, outcome: str) -> None:
    stretch.end, stretch.outcome = at, outcome


def _waits_in_line(run: Run) -> Iterator[Stretch]:
    ended = run.started_at or run.finished_at
    yield Stretch("queue", "In line", run.created_at, ended, "started" if run.started_at else run.status)


def _cancels(cancellations: Sequence[Cancellation]) -> Iterator[Stretch]:
    for one in cancellations:
        outcome = (one.outcome or "pending").replace("_", " ")
        yield Stretch("cancel", f"Cancel ({one.source})", one.accepted_at, one.settled_at, outcome)
