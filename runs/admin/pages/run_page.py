"""What the page of one run shows. Each part is bounded."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import async_to_sync
from django.db.models import TextField
from django.db.models.functions import Cast, Length, Substr
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runs import operators
from runs.admin.actions.confirmation import buttons_for
from runs.admin.base import actor_of
from runs.admin.formatting import (
    NOTHING,
    SHOWN,
    badge,
    between,
    clock,
    clock_ms,
    counts,
    cut,
    link,
    number,
    readable,
    short,
    span,
)
from runs.admin.lists import attention
from runs.admin.pages import timeline
from runs.foundation.exceptions import described
from runs.lifecycle import liveness, predicates
from runs.models import Cancellation, Run, RunEvent, ToolCall
from runs.states import ACTIVE, Effect, Resolution, RunStatus
from runs.wire import statistics
from runs.wire.encoding import pretty

EVENTS = 50  # on a page of the log
_CALLS = 200
_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class Logged:
    """An event as the page shows it."""

    seq: int
    type: str
    at: str
    size: int  # characters of its data
    text: str | None  # its data; None for who may not read it


def live(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What changes while the run is active."""
    now = timezone.now()
    reads = operators.may_read(actor_of(request), run.session.owner_id)
    cancellations = list(
        Cancellation.objects.filter(run=run).select_related("requested_by").order_by("-accepted_at")[:50]
    )
    calls = list(ToolCall.objects.filter(run=run).order_by("id")[:_CALLS])
    signs = _signs(run, calls, now)
    return {
        "run": run,
        "reads": reads,
        "is_live": run.status in ACTIVE,
        "state": badge(run.status),
        "signs": [badge(sign) for sign in signs],
        "buttons": buttons_for(request, run),
        "facts": _facts(run, now),
        "place": _place(request, run),
        "successor": _successor(run),
        "worker_state": badge(attention.state_of(run.worker)) if run.worker else None,
        "worker_beat": between(run.worker.heartbeat_at, now) if run.worker else None,
        "numbers": _numbers(run, now),
        "words": _words(run) if reads else [],
        "timeline": timeline.of(run, cancellations, now),
        "width": timeline.WIDTH,
        "calls": [_call(call, now, reads=reads) for call in calls],
        "calls_cut": run.tool_calls > _CALLS,
        "cancellations": [_cancellation(one, now) for one in cancellations],
        **_log(request, run, reads=reads),
        "now": clock(now),
        "zone": f"{timezone.localtime(now):%Z}",
    }


def checkpoint(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The messages in the checkpoint of the run's session."""
    from runs.reading import inspection

    reads = operators.may_read(actor_of(request), run.session.owner_id)
    try:
        found = async_to_sync(inspection.inspect)(run.session)
    except Exception as error:  # noqa: BLE001 - a graph's own reducers may raise anything
        return {"unreadable": described(error) if reads else type(error).__name__}
    shown = found.messages[-_MESSAGES:]
    return {
        "saved": found,
        "reads": reads,
        "left_out": len(found.messages) - len(shown),
        "messages_shown": [
            (message, cut(message.text), [(call, cut(pretty(call.args))) for call in message.calls])
            for message in shown
        ],
    }


def _signs(run: Run, calls: list[ToolCall], now: datetime) -> list[str]:
    unknown = any(call.effect == Effect.UNKNOWN for call in calls)
    return attention.signs([run], now)[run.id] + (["effect unknown"] if unknown else [])


def _place(request: HttpRequest, run: Run) -> str | SafeString:
    """Why no worker executes this run now."""
    if run.status != RunStatus.QUEUED:
        return "The worker that executed it is not there any more." if run.claim else "No worker took it."
    ahead = predicates.ahead_of_queues([run.session_id]).get(run.session_id)
    if ahead is not None:
        name = link(actor_of(request), "run", ahead.id, short(ahead.id))
        if ahead.status == RunStatus.INTERRUPTED:
            return format_html(
                "It waits behind the interrupted run {}, about which nobody has decided.", name
            )
        return format_html("It waits behind the run {}, which is {}.", name, ahead.status)
    if liveness.taking_turns():
        return "No worker has taken it yet."
    return "No worker has taken it, and none is there that takes turns."


def _successor(run: Run) -> Run | None:
    """The run in which this one was resumed or retried."""
    if run.resolution == Resolution.RESUMED:
        return run.resumed_by.only("id").first()
    return run.retried_by.only("id").first() if run.resolution == Resolution.RETRIED else None


def _facts(run: Run, now: datetime) -> list[tuple[str, str | SafeString]]:
    return [
        ("Admitted", clock(run.created_at)),
        ("Started", clock(run.started_at)),
        ("Ended", clock(run.finished_at)),
        ("Age", between(run.created_at, now)),
        ("Last event", f"{clock(run.last_event_at)}, number {run.last_seq:,}"),
        ("Position in its session", number(run.position)),
        ("On disconnect", run.on_disconnect),
        ("Resolution", run.resolution or NOTHING),
        ("Claims", number(run.claim)),
        ("History in order", "yes" if run.repaired else "not yet"),
    ]


def _numbers(run: Run, now: datetime) -> list[tuple[str, str]]:
    counted = statistics.of_run(run)
    first, executed = counted["first_token_ms"], counted["duration_ms"] / 1000
    if run.claimed_at is not None:  # the statistics do not have the current claim yet
        executed += max((now - run.claimed_at).total_seconds(), 0)
    return [
        *counts(counted),
        ("First token after", span(first / 1000) if first is not None else NOTHING),
        ("Executed for", span(executed)),
    ]


def _words(run: Run) -> list[tuple[str, str]]:
    said = [("Message", cut(run.input))]
    if run.questions:
        said.append(("Questions", cut(pretty(run.questions))))
    if run.answers:
        said.append(("Answers", cut(pretty(run.answers))))
    return said


def _call(call: ToolCall, now: datetime, *, reads: bool) -> dict[str, Any]:
    took = NOTHING
    if call.duration_ms is not None:
        took = span(call.duration_ms / 1000)
    elif call.started_at and call.effect is None:
        took = f"{between(call.started_at, now)} so far"
    effect = "not known yet" if call.effect is None else str(call.effect)
    return {
        "id": call.given_id,
        "name": call.name,
        "state": badge(call.status),
        "effect": badge(effect, "bad" if call.effect == Effect.UNKNOWN else "quiet"),
        "started": clock(call.started_at),
        "took": took,
        "args": cut(pretty(call.args)) if reads else None,
        "result": cut(call.result or "") if reads else None,
        "error": cut(call.error or "") if reads else None,
    }


def _cancellation(one: Cancellation, now: datetime) -> dict[str, Any]:
    return {
        "id": one.id,
        "who": one.requested_by.get_username() if one.requested_by else NOTHING,
        "source": one.source,
        "reason": one.reason or NOTHING,
        "accepted": clock(one.accepted_at),
        "took": between(one.accepted_at, one.settled_at or now),
        "outcome": badge(one.outcome or "pending"),
        "escalated": one.escalated,
    }


def _log(request: HttpRequest, run: Run, *, reads: bool) -> dict[str, Any]:
    """A page of the log, newest first; ``?before=`` is the seq it ends before."""
    asked = request.GET.get("before", "")
    before = min(int(asked), run.last_seq + 1) if asked.isdecimal() and len(asked) < 10 else None
    events = RunEvent.objects.filter(run=run, seq__lt=before or run.last_seq + 1)
    # Only the beginning of long data is read.
    rows = events.annotate(text=Cast("data", TextField()))
    rows = rows.annotate(size=Length("text"), begin=Substr("text", 1, SHOWN))
    page = list(rows.order_by("-seq").values_list("seq", "type", "at", "size", "begin")[:EVENTS])
    return {
        "events": [
            Logged(seq, type, clock_ms(at), size, cut(readable(begin), size) if reads else None)
            for seq, type, at, size, begin in page
        ],
        "older": page[-1][0] if page and page[-1][0] > 1 else None,
        "newer": before + EVENTS if before is not None and before <= run.last_seq else None,
        "before": before,
    }
