"""The ToolCall rows: what the log says of each tool call, kept where it can be asked for.

Written only together with the tool events themselves, so the two cannot differ.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Case, Value, When
from django.db.models.functions import Coalesce

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


def project_encoded(run_id: UUID, entries: Iterable[tuple[str, str]], at: datetime) -> None:
    """The same for events whose data is JSON already."""
    for type, data in entries:
        if type in _PROJECTED:
            _project(run_id, type, json.loads(data), at)


def close_open(run: Run, *, resumable: bool, lost: bool) -> list[tuple[EventType, dict[str, Any]]]:
    """The tool.cancelled events that a run owes when it ends without its execution; to be recorded.

    None when it can be resumed: whoever does goes on with the calls. What is known of their effect is noted.
    If the execution is ``lost``, nothing is known of any: one may have begun after the last commit.
    """
    if resumable:
        open_calls = ToolCall.objects.filter(run=run, status=ToolStatus.RUNNING)
        if lost:
            begun_at = Coalesce("started_at", Value(run.last_event_at))
            open_calls.update(status=ToolStatus.INTERRUPTED, effect=Effect.UNKNOWN, started_at=begun_at)
        else:
            never_began = When(started_at__isnull=True, then=Value(Effect.NONE))
            known = Case(never_began, default=Value(Effect.UNKNOWN))
            open_calls.update(status=ToolStatus.INTERRUPTED, effect=known)
        return []
    return [
        (
            EventType.TOOL_CANCELLED,
            {
                "tool_call": call.given_id,
                "effect": Effect.UNKNOWN if call.started_at or lost else Effect.NONE,
            },
        )
        for call in statements.open_calls(run.id)
    ]


def straggler_ended(run_id: UUID, call_id: str, effect: Effect) -> None:
    """What was given up on did end: bring the one field up to date, and nothing else."""
    with transaction.atomic():
        unknown = ToolCall.objects.filter(run=run_id, call_id=lookup_key(call_id), effect=Effect.UNKNOWN)
        if unknown.update(effect=effect):
            notices.effect_changed(Run.objects.get(id=run_id), call_id, effect)


def _project(run_id: UUID, type: str, data: dict[str, Any], at: datetime) -> None:
    if type == EventType.MESSAGE_COMPLETED:
        # A call exists from the moment the model has asked for it, whether or not it ever starts.
        for call in data["tool_calls"]:
            # Some providers use an id again in a later message: then it is another call.
            ToolCall.objects.filter(run_id=run_id, call_id=lookup_key(call["id"])).delete()
            asked = {"name": call["name"], "args": call["args"], "message_id": lookup_key(data["message"])}
            ToolCall.objects.create(run_id=run_id, **_named(call["id"]), **asked)
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
    """The columns for the id of a call."""
    return {"call_id": lookup_key(call), "long_id": call if len(call) > ID_LIMIT else None}
