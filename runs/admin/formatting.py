"""How the console writes times, numbers, states and data."""

import json
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.urls import reverse
from django.utils import timezone
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString

from runs.models import Run, Session
from runs.wire import contract

NOTHING = "\N{EN DASH}"
SHOWN = 4000  # characters of one event, argument or result

# The colour of a state: good, bad, busy, quiet or waiting. The word is there as well.
_TONES = {
    "completed": "good",
    "cancelled": "quiet",
    "failed": "bad",
    "interrupted": "bad",
    "running": "busy",
    "waiting": "wait",
    "queued": "wait",
    "reconciled": "good",
    "timed_out": "bad",
    "already_finished": "quiet",
    "pending": "busy",
    "beating": "good",
    "silent": "bad",
    "gone": "bad",
    "leaving": "wait",
    "idle": "quiet",
    "stuck": "bad",
    "cancel overdue": "bad",
    "cancel pending": "wait",
    "worker lost": "bad",
    "not taken": "bad",
    "undecided": "wait",
    "effect unknown": "bad",
    "still at work": "bad",
}


def span(seconds: float) -> str:
    """A duration in its two greatest units: "40 ms", "1.5 s", "3 min 20 s", "2 h 5 min", "3 d"."""
    seconds = max(seconds, 0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, below, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def between(start: datetime | None, end: datetime | None) -> str:
    """The time between two moments; a dash when one is not known."""
    return span((end - start).total_seconds()) if start and end else NOTHING


def ago(at: datetime | None, now: datetime | None = None) -> str | SafeString:
    """The time that has passed since; the moment itself is in the title."""
    if at is None:
        return NOTHING
    passed: timedelta = (now or timezone.now()) - at
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', at.isoformat(), clock(at), span(passed.total_seconds())
    )


def clock(at: datetime | None) -> str:
    """A moment to the second in the configured time zone, with the name of the zone."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}" if at else NOTHING


def number(value: int | None, *, estimated: bool = False) -> str:
    """12345 becomes "12,345"; None becomes a dash."""
    return NOTHING if value is None else f"{'about ' if estimated else ''}{value:,}"


def badge(state: str, tone: str | None = None) -> SafeString:
    """A state as a small label."""
    return format_html(
        '<span class="state state--{}">{}</span>', tone or _TONES.get(state, "quiet"), state.replace("_", " ")
    )


def count(number_of: int, thing: str) -> str:
    """ "1 run", "2 runs", "1,000 runs"."""
    return f"{number_of:,} {thing}{'' if number_of == 1 else 's'}"


def counts(numbers: contract.RunStatistics | contract.SessionStatistics) -> list[tuple[str, str]]:
    """What was counted of a run or a session, each with its name."""
    estimated = numbers["tokens_estimated"]
    return [
        ("Messages", number(numbers["message_count"])),
        ("LLM calls", number(numbers["llm_calls"])),
        ("Tool calls", number(numbers["tool_calls"])),
        ("Tokens in", number(numbers["input_tokens"], estimated=estimated)),
        ("Tokens out", number(numbers["output_tokens"], estimated=estimated)),
    ]


def tokens(run: Run) -> int | None:
    """Tokens in and out together, those of the calls in progress included; None when none is known."""
    known = [value for value in (run.input_tokens, run.output_tokens) if value is not None]
    open_tokens = run.open_input_tokens + run.open_output_tokens
    return sum(known) + open_tokens if known or open_tokens else None


def short(identifier: UUID | str | None) -> str:
    """The beginning of an id: enough to recognise it and to search for it."""
    return str(identifier)[:8] if identifier else NOTHING


def link(reader: Any, name: str, identifier: Any, text: Any) -> SafeString:
    """A link to a page of the console; for a reader who may not open it, the text alone."""
    if not reader.has_perm(f"runs.view_{name}"):
        return conditional_escape(text)
    address = reverse(f"admin:runs_{name}_change", args=[identifier])
    return format_html('<a href="{}">{}</a>', address, text)


def session_name(session: Session, *, readable: bool) -> str:
    """The title of a session for those who may read it, else its short id."""
    return session.title if readable and session.title else short(session.id)


def clock_ms(at: datetime) -> str:
    """A time of day to the millisecond."""
    local = timezone.localtime(at)
    return f"{local:%H:%M:%S}.{local.microsecond // 1000:03}"


def readable(text: str) -> str:
    """JSON from the database, with letters instead of their escapes; other text as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


def cut(text: str, whole: int | None = None) -> str:
    """The beginning of a long text, and how much is missing of ``whole``, which is its length if given."""
    missing = (len(text) if whole is None else whole) - SHOWN
    return text if missing <= 0 else f"{text[:SHOWN]}\n… and {missing:,} characters more"
