"""The durable log: how an event is recorded, and how followers are told of it.

Events are committed before anybody is told. There are two ways in, with one numbering: ``record`` writes
those of the lifecycle inside the transaction of their change, ``runs.log.writer`` those that executions emit.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db import connection, transaction

from runs.live import bus
from runs.log import tool_calls
from runs.models import Run
from runs.states import EventType
from runs.wire import encoding

Entry: TypeAlias = tuple[EventType, dict[str, Any]]

# Rows of one statement: databases bound its parameters.
_ROWS = 1000


def publish(
    session_id: UUID, run_id: UUID, position: int, first: int, events: Sequence[tuple[str, str]]
) -> None:
    """Tell followers of committed events, ``(type, wire JSON)`` each, numbered from ``first``."""
    bus.publish(
        bus.session_group(session_id),
        {"kind": "events", "run": str(run_id), "position": position, "first": first, "events": list(events)},
    )


def insert(cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
    """Append rows ``(run, seq, type, data as JSON, at)``, all in the types of the database."""
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        places = ", ".join(["(%s, %s, %s, %s, %s)"] * len(some))
        cursor.execute(
            f"INSERT INTO runs_runevent (run_id, seq, type, data, at) VALUES {places}",  # noqa: S608 - of places
            [value for row in some for value in row],
        )


def count(run: Run, entries: Sequence[Entry], at: datetime) -> None:
    """Give these events their numbers, on a locked run that the caller writes."""
    if entries:
        run.last_seq += len(entries)
        run.last_event_at = at


def record(run: Run, entries: Sequence[Entry], at: datetime) -> None:
    """Append events to a locked run inside the current transaction; they are the last that ``count`` counted.

    They are published after the commit, once the run has a position: before that it is no part of its
    session's stream.
    """
    if not entries:
        return
    first = run.last_seq + 1 - len(entries)
    encoded = [(seq, type, encoding.encode(data)) for seq, (type, data) in enumerate(entries, start=first)]
    key = run._meta.pk.get_db_prep_value(run.id, connection)
    at_key = connection.ops.adapt_datetimefield_value(at)
    with connection.cursor() as cursor:
        insert(cursor, [(key, seq, type, data, at_key) for seq, type, data in encoded])
    tool_calls.project(run, entries, at)
    if run.position is None:
        return
    position, told = (
        run.position,
        [(type, encoding.event(run.id, seq, type, data, at)) for seq, type, data in encoded],
    )
    if first == 2:  # that it was queued was recorded before it had a position
        first, (type, data) = 1, queued(run)
        told.insert(0, (type, encoding.event(run.id, 1, type, encoding.encode(data), run.created_at)))
    transaction.on_commit(lambda: publish(run.session_id, run.id, position, first, told))


def queued(run: Run) -> Entry:
    """The first event of a run."""
    return EventType.RUN_QUEUED, {"message": run.message_id, "input": run.input}
