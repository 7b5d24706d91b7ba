"""The shapes of the wire contract as JSON Schemas: what ``runs.wire.representations`` and the log give out.

They describe answers only; what a client may send is described by ``chat.api.inputs`` itself. A test holds
real answers against them, closed: a field that is missing here, or there, is a failure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from runs.states import (
    CancelOutcome,
    CancelSource,
    Effect,
    ErrorCode,
    EventType,
    InterruptReason,
    OnDisconnect,
    Origin,
    Resolution,
    RunStatus,
    SessionStatus,
    ToolStatus,
)

Shape: TypeAlias = dict[str, Any]

ERROR_CODES = (
    "invalid", "unauthenticated", "forbidden", "csrf_failed", "not_found", "run_active", "not_waiting",
    "not_interrupted", "idempotency_conflict", "agent_mismatch", "cursor_gone", "too_large", "throttled",
    "unavailable", "internal",
)  # fmt: skip


def ref(name: str) -> Shape:
    """A component by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(fields: Mapping[str, Shape], *, optional: Iterable[str] = (), about: str = "") -> Shape:
    """An object whose fields are all there, but for the ``optional`` ones."""
    left_out = set(optional)
    shape: Shape = {
        "type": "object",
        "properties": dict(fields),
        "required": [name for name in fields if name not in left_out],
    }
    return {**shape, "description": about} if about else shape


def page_of(name: str) -> Shape:
    """A page of a list; the links lead to the pages around it."""
    link = {"type": ["string", "null"], "format": "uri"}
    return record({"results": _list(ref(name)), "next": link, "previous": link})


def _text(about: str = "", **more: Any) -> Shape:
    return {"type": "string", **({"description": about} if about else {}), **more}


def _count(about: str = "") -> Shape:
    return {"type": "integer", "minimum": 0, **({"description": about} if about else {})}


def _flag(about: str) -> Shape:
    return {"type": "boolean", "description": about}


def _one_of(values: Iterable[str], about: str = "") -> Shape:
    return _text(about, enum=[str(value) for value in values])


def _list(items: Shape, about: str = "") -> Shape:
    return {"type": "array", "items": items, **({"description": about} if about else {})}


def _or_null(shape: Shape) -> Shape:
    if "$ref" in shape:
        return {"oneOf": [shape, {"type": "null"}]}
    nullable = {**shape, "type": [shape["type"], "null"]}
    return {**nullable, "enum": [*shape["enum"], None]} if "enum" in shape else nullable


_ID = {"type": "string", "format": "uuid"}
_TIME = {"type": "string", "format": "date-time", "description": "ISO 8601, in UTC."}
_ANYTHING: Shape = {"description": "Any JSON value."}
_ANY_OBJECT: Shape = {"type": "object", "additionalProperties": True}
_GRAPH_ID = _text("An id of the graph's own.")
_NODE = _or_null(_text("The node of the graph."))
_NAMESPACE = _list(_text(), "Where among nested graphs; empty for the graph itself.")
_USAGE = _or_null(ref("Usage"))

_COUNTS = {
    "message_count": _count("User, assistant and tool messages."),
    "llm_calls": _count(),
    "tool_calls": _count(),
    "input_tokens": _or_null(_count("Null: not known.")),
    "output_tokens": _or_null(_count("Null: not known.")),
    "tokens_estimated": _flag("Some of the tokens are an estimate, as those of an aborted call are."),
    "duration_ms": _count("Time of execution; queueing and waiting do not count."),
}

_PARTS: dict[str, Shape] = {
    "Agent": record(
        {
            "name": _text(),
            "title": _text(),
            "description": _text(),
            "default": _flag("A new session gets it unless another one is named."),
        }
    ),
    "SessionStatistics": record({"runs": _count(), **_COUNTS}, about="The sums over a session's runs."),
    "RunStatistics": record(
        {**_COUNTS, "first_token_ms": _or_null(_count("From the start to the first text of an answer."))}
    ),
    "QueuedTurn": record({"run": _ID, "message": _GRAPH_ID, "input": _text(), "created_at": _TIME}),
    "Session": record(
        {
            "id": _ID,
            "title": _text(),
            "agent": _text(),
            "origin": _one_of(Origin.values),
            "status": _one_of(SessionStatus.values),
            "active_run": _or_null(ref("Run")),
            "queued": _list(ref("QueuedTurn"), "The line, first first."),
            "created_at": _TIME,
            "updated_at": _TIME,
            "cancellation_pending": _flag("A cancel of this session was accepted and has not settled."),
            "cancellation_revision": _count(
                "Grows whenever cancellation_pending changes. Drop what has a lower one than you have seen."
            ),
            "statistics": ref("SessionStatistics"),
        },
        about="One conversation.",
    ),
    "RunError": record(
        {"code": _one_of(ErrorCode.values), "message": _text("A sentence a person can read.")},
        about="Why a run failed.",
    ),
    "Run": record(
        {
            "id": _ID,
            "session": _ID,
            "position": _or_null(_count("Its place in the session's stream; null while it is queued.")),
            "status": _one_of(RunStatus.values),
            "resolution": _or_null(_one_of(Resolution.values, "What became of an ended run afterwards.")),
            "on_disconnect": _one_of(OnDisconnect.values),
            "resumes": _or_null(_ID),
            "retries": _or_null(_ID),
            "error": _or_null(ref("RunError")),
            "cancellation": _or_null(ref("Cancellation")),
            "statistics": ref("RunStatistics"),
            "last_seq": _count("The number of its last event."),
            "created_at": _TIME,
            "started_at": _or_null(_TIME),
            "finished_at": _or_null(_TIME),
        },
        about="One turn of the agent, from admission to one terminal fact.",
    ),
    "Cancellation": record(
        {
            "id": _or_null({**_ID, "description": "Null: there was nothing to cancel any more."}),
            "session": _ID,
            "run": _or_null(_ID),
            "source": _one_of(CancelSource.values),
            "reason": _text(),
            "requested_by": _or_null(_text("A username.")),
            "accepted_at": _or_null(_TIME),
            "settled_at": _or_null(_TIME),
            "outcome": _or_null(_one_of(CancelOutcome.values, "Null: it has not settled yet.")),
            "escalated": _flag("Something did not stop in time and was given up on."),
        },
        about="One cancel operation.",
    ),
    "Reconciliation": record(
        {
            "run": ref("Run"),
            "changed": _flag("Something was changed."),
            "done": _list(_text(), "What was done or found, a sentence each."),
        },
        about="What an operator's reconcile did.",
    ),
    "Worker": record(
        {
            "id": _ID,
            "host": _text(),
            "pid": _count(),
            "version": _text(),
            "started_at": _TIME,
            "heartbeat_at": _TIME,
            "active_runs": _count(),
            "stragglers": _count("Runs that ended while a thread or process of theirs still works."),
        },
        about="One process that executes runs.",
    ),
    "Usage": record({"input_tokens": _or_null(_count()), "output_tokens": _or_null(_count())}),
    "ToolCall": record(
        {
            "id": _or_null(_GRAPH_ID),
            "name": _text(),
            "args": _ANY_OBJECT,
            "status": _one_of(ToolStatus.values),
            "result": _or_null(_text()),
            "error": _or_null(_text()),
            "effect": _or_null(
                _one_of(
                    Effect.values,
                    "none: never started. done: its result arrived. unknown: it started and ended without "
                    "one. Null while it runs.",
                )
            ),
            "duration_ms": _or_null(_count()),
        }
    ),
    "Message": record(
        {
            "id": _or_null(_GRAPH_ID),
            "run": _or_null(_ID),
            "role": _one_of(("user", "assistant", "system")),
            "text": _text(),
            "status": _one_of(("complete", "interrupted", "streaming")),
            "tool_calls": _list(ref("ToolCall")),
            "usage": _USAGE,
            "at": _or_null(_TIME),
            "html": _text("Sanitised HTML of the text, with ?render=html."),
        },
        optional=["html"],
    ),
    "History": record(
        {
            "session": ref("Session"),
            "messages": _list(ref("Message"), "Oldest first."),
            "run": _or_null(ref("Run")),
        },
        about="A session's messages, and its latest run: follow on from that run's last_seq.",
    ),
    "EventPage": record(
        {
            "events": _list(ref("Event")),
            "last_seq": _count("The number of the page's last event: the next page's after."),
            "done": _flag("The run has ended and there is nothing behind this page."),
        }
    ),
    "Error": record(
        {"error": record({"code": _one_of(ERROR_CODES), "message": _text("A sentence a person can read.")})},
        about="Every error has this form.",
    ),
}

# The data of each event, and which of its fields may be missing.

_CALL: Shape = {"tool_call": _GRAPH_ID}
_MESSAGE: Shape = {"message": _GRAPH_ID}
_ROLE: Shape = {"role": _one_of(("assistant",))}
_ENDED: Shape = {"statistics": ref("RunStatistics")}
_ASKED = record(
    {
        "id": _GRAPH_ID,
        "name": _text(),
        "args": _ANY_OBJECT,
        "error": _text("Its arguments could not be read."),
    },
    optional=["error"],
)
_QUESTION = record({"id": _GRAPH_ID, "value": _ANYTHING})
_OPTIONAL = {"error", "cancellation", "reason"}

EVENTS: dict[EventType, Shape] = {
    EventType.RUN_QUEUED: {**_MESSAGE, "input": _text("The user's words.")},
    EventType.RUN_STARTED: {"worker": _ID, "resumes": _or_null(_ID), "retries": _or_null(_ID)},
    EventType.MESSAGE_STARTED: {**_MESSAGE, **_ROLE, "node": _NODE, "namespace": _NAMESPACE},
    EventType.MESSAGE_DELTA: {**_MESSAGE, "text": _text("What comes next.")},
    EventType.MESSAGE_COMPLETED: {
        **_MESSAGE,
        **_ROLE,
        "text": _text("The whole text."),
        "tool_calls": _list(_ASKED),
        "usage": _USAGE,
        "status": _one_of(("complete", "interrupted")),
    },
    EventType.TOOL_STARTED: {
        **_CALL,
        "message": _or_null(_GRAPH_ID),
        "name": _text(),
        "args": _ANY_OBJECT,
        "node": _NODE,
        "namespace": _NAMESPACE,
    },
    EventType.TOOL_PROGRESS: {**_CALL, "text": _text()},
    EventType.TOOL_COMPLETED: {**_CALL, "result": _text(), "duration_ms": _or_null(_count())},
    EventType.TOOL_FAILED: {**_CALL, "error": _text(), "duration_ms": _or_null(_count())},
    EventType.TOOL_CANCELLED: {**_CALL, "effect": _one_of((Effect.NONE, Effect.UNKNOWN))},
    EventType.RUN_WAITING: {"questions": _list(_QUESTION)},
    EventType.RUN_ANSWERED: {"answers": _ANY_OBJECT, "by": _text("A username.")},
    EventType.GRAPH_UPDATE: {"node": _text(), "namespace": _NAMESPACE, "data": _ANYTHING},
    EventType.GRAPH_CUSTOM: {"namespace": _NAMESPACE, "data": _ANYTHING},
    EventType.RUN_COMPLETED: _ENDED,
    EventType.RUN_FAILED: {**_ENDED, "error": ref("RunError")},
    EventType.RUN_CANCELLED: {**_ENDED, "cancellation": ref("Cancellation")},
    EventType.RUN_INTERRUPTED: {**_ENDED, "reason": _one_of(InterruptReason.values)},
}


def _event_name(type: EventType) -> str:
    return "".join(word.capitalize() for word in type.split(".")) + "Event"


def _event(type: EventType, data: Shape) -> Shape:
    return record(
        {
            "run": _ID,
            "seq": {"type": "integer", "minimum": 1, "description": "Without holes."},
            "type": {"type": "string", "const": str(type)},
            "data": record(data, optional=_OPTIONAL & {"cancellation", "reason"}),
            "at": _TIME,
        }
    )


def components() -> dict[str, Shape]:
    """All shapes by name."""
    names = {type: _event_name(type) for type in EVENTS}
    event = {
        "oneOf": [ref(name) for name in names.values()],
        "discriminator": {
            "propertyName": "type",
            "mapping": {str(type): ref(name)["$ref"] for type, name in names.items()},
        },
    }
    pages = {f"{name}Page": page_of(name) for name in ("Agent", "Session", "Run", "Worker")}
    return {
        **_PARTS,
        **pages,
        "Event": event,
        **{names[type]: _event(type, data) for type, data in EVENTS.items()},
    }
