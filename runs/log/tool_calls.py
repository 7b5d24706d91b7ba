"""The ToolCall rows: the state of each tool call, as its events in the log say.

They are written in the transactions of these events, so rows and log do not differ.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from runs import statements
from runs.foundation.limits import ID_LIMIT
from runs.foundation.values import lookup_key
from runs.live import notices
from runs.models import Run, ToolCall
from runs.states import Effect, EventType, ToolStatus

_PROJECTED = frozenset(
    (
        EventType.MESSAGE_COMPLETED,
        EventType.TOOL_STARTED,
        EventType.TOOL_COMPLETED,
        EventType.TOOL_FAILED,
        EventType.TOOL_CANCELLED,
    )
)


def project(run: Run, entries: Iterable[tuple[str, dict[str, Any]]], at: datetime) -> None:
    """Bring the run's ToolCall rows up to date with these events, in the current transaction."""
    for type, data in entries:
        if type in _PROJECTED:
            _project(run.id, type, data, at)


def project_encoded(
    run_id: UUID, entries: Iterable[tuple[str, str]], at: datetime, gated_tools: Collection[str]
) -> None:
    """The same for events whose data is encoded already.

    ``gated_tools`` are the names of the tools whose starts are committed before they begin.
    """
    for type, data in entries:
        if type in _PROJECTED:
            _project(run_id, type, json.loads(data), at, gated_tools)


def keep(run_id: UUID, call_id: str, dumped: bytes) -> None:
    """Keep what a call has given, for its step to start over. Its row is there."""
    ToolCall.objects.filter(run=run_id, call_id=lookup_key(call_id)).update(kept=dumped)


def kept(run_ids: Collection[UUID]) -> Mapping[str, bytes]:
    """What calls of these runs have given, by their lookup keys, as far as the log has not all of it."""
    rows = ToolCall.objects.filter(run__in=run_ids, kept__isnull=False)
    return {call_id: bytes(dumped or b"") for call_id, dumped in rows.values_list("call_id", "kept")}


def ends_of_open(run: Run) -> list[tuple[EventType, dict[str, Any]]]:
    """The tool.cancelled events that a run needs at its end, one for each open call."""
    return [
        (EventType.TOOL_CANCELLED, {"tool_call": call.given_id, "effect": _effect_at_end(call, ())})
        for call in statements.open_calls(run.id)
    ]


def interrupt_open(run: Run, not_begun: Collection[str]) -> dict[str, str]:
    """Write what is known of the open calls of an interrupted run; their effects, by their ids.

    A run that resumes it goes on with them, so there are no events of their end. ``not_begun`` are ids of
    calls that are known not to have begun.
    """
    effects: dict[str, str] = {}
    keys = frozenset(map(lookup_key, not_begun))
    for call in statements.open_calls(run.id):
        call.status, call.effect = ToolStatus.INTERRUPTED, _effect_at_end(call, keys)
        if call.effect == Effect.UNKNOWN and call.started_at is None:
            call.started_at = run.last_event_at
        call.save()
        effects[call.given_id] = call.effect.value
    return effects


def _effect_at_end(call: ToolCall, not_begun: Collection[str]) -> Effect:
    """The effect of an open call. Only a ToolNode's start is known to be in the log before it begins."""
    is_known = call.start_is_logged or call.call_id in not_begun
    return Effect.without_result(may_have_begun=call.started_at is not None or not is_known)


def straggler_ended(run_id: UUID, call_id: str, effect: Effect) -> None:
    """Set the effect of a call that was given up on and has ended now. Nothing else changes."""
    with transaction.atomic():
        unknown = ToolCall.objects.filter(run=run_id, call_id=lookup_key(call_id), effect=Effect.UNKNOWN)
        if unknown.update(effect=effect):
            notices.effect_changed(Run.objects.get(id=run_id), call_id, effect)


def _project(
    run_id: UUID, type: str, data: dict[str, Any], at: datetime, gated_tools: Collection[str] = ()
) -> None:
    if type == EventType.MESSAGE_COMPLETED:
        # The row of a call is made when the model asks for it, whether or not it ever starts.
        for call in data["tool_calls"]:
            # Some providers use an id again in a later message, for another call.
            ToolCall.objects.filter(run_id=run_id, call_id=lookup_key(call["id"])).delete()
            asked = {"name": call["name"], "args": call["args"], "message_id": lookup_key(data["message"])}
            is_logged = call["name"] in gated_tools
            ToolCall.objects.create(run_id=run_id, **_named(call["id"]), **asked, start_is_logged=is_logged)
        return
    named = _named(data["tool_call"])
    row, _ = ToolCall.objects.get_or_create(run_id=run_id, call_id=named["call_id"], defaults=named)
    if type == EventType.TOOL_STARTED:
        row.name, row.args, row.message_id = data["name"], data["args"], lookup_key(data["message"] or "")
        row.started_at = at
    elif type == EventType.TOOL_COMPLETED:
        row.status, row.effect, row.result = ToolStatus.COMPLETED, Effect.DONE, data["result"]
    elif type == EventType.TOOL_FAILED:
        row.status, row.error = ToolStatus.FAILED, data["error"]
        row.effect = Effect.DONE if row.started_at else Effect.NONE
    else:
        row.status, row.effect = ToolStatus.CANCELLED, data["effect"]
    if type != EventType.TOOL_STARTED and row.started_at is not None:
        row.duration_ms = max(int((at - row.started_at).total_seconds() * 1000), 0)
    if row.effect == Effect.UNKNOWN and row.started_at is None:
        row.started_at = at
    row.save()


def _named(call: str) -> dict[str, str | None]:
    """The columns that have the id of a call."""
    return {"call_id": lookup_key(call), "long_id": call if len(call) > ID_LIMIT else None}
