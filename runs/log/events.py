"""The durable log: how events are written, and how they are published.

Events are committed before they are published. The lifecycle writes its own with ``record``, in the
transaction of its change. ``runs.log.writer`` writes those that executions emit. They share one numbering.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from django.db import connection, transaction

from runs.foundation.values import lookup_key
from runs.live import bus
from runs.log import tool_calls
from runs.models import Run
from runs.states import EventType
from runs.wire import encoding

Entry: TypeAlias = tuple[EventType, dict[str, Any]]

# The types of events that have a whole message.
WHOLE_MESSAGES = (EventType.RUN_QUEUED, EventType.MESSAGE_COMPLETED)

# Rows of one statement: databases limit its parameters.
_ROWS = 1000


def publish(
    session_id: UUID, run_id: UUID, position: int, first: int, events: Sequence[tuple[str, str]]
) -> None:
    """Send committed events to followers: ``(type, wire JSON)`` each, numbered from ``first``."""
    bus.publish(
        bus.session_group(session_id),
        {"kind": "events", "run": str(run_id), "position": position, "first": first, "events": list(events)},
    )


def insert(cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows ``(run, seq, type, data as JSON, at, message_key)``, with values as the database takes
    them."""
    for start in range(0, len(rows), _ROWS):
        chunk = rows[start : start + _ROWS]
        places = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(chunk))
        cursor.execute(
            "INSERT INTO runs_runevent (run_id, seq, type, data, at, message_key)"  # noqa: S608 - of places
            f" VALUES {places}",
            [value for row in chunk for value in row],
        )


def message_key(type: str, data: Any) -> str | None:
    """What finds an event by the message that it has as a whole."""
    return lookup_key(data["message"]) if type in WHOLE_MESSAGES else None


def count(run: Run, entries: Sequence[Entry], at: datetime) -> None:
    """Add these events to ``last_seq`` of a locked run, which the caller saves."""
    if entries:
        run.last_seq += len(entries)
        run.last_event_at = at


def record(run: Run, entries: Sequence[Entry], at: datetime) -> None:
    """Write events of a locked run in the current transaction. ``count`` must have counted these as the last.

    They are published after the commit if the run has a position. A run without one is not in its session's
    stream yet.
    """
    if not entries:
        return
    first = run.last_seq + 1 - len(entries)
    encoded = [(seq, type, encoding.encode(data)) for seq, (type, data) in enumerate(entries, start=first)]
    keys = [message_key(type, data) for type, data in entries]
    key = run._meta.pk.get_db_prep_value(run.id, connection)
    at_key = connection.ops.adapt_datetimefield_value(at)
    with connection.cursor() as cursor:
        rows = zip(encoded, keys, strict=True)
        insert(cursor, [(key, *event, at_key, of_message) for event, of_message in rows])
    tool_calls.project(run.id, entries, at)
    if run.position is None:
        return
    published = [(type, encoding.event(run.id, seq, type, data, at)) for seq, type, data in encoded]
    if first == 2:  # run.queued was recorded before the run had a position
        first, (type, data) = 1, queued(run)
        published.insert(0, (type, encoding.event(run.id, 1, type, encoding.encode(data), run.created_at)))
    transaction.on_commit(partial(publish, run.session_id, run.id, run.position, first, published))


def queued(run: Run) -> Entry:
    """The first event of a run."""
    return EventType.RUN_QUEUED, {"message": run.message_id, "input": run.input}
