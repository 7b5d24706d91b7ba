"""The durable log: how an event is recorded, and how followers are told of it.

Events are committed before anybody is told. There are two ways in, with one numbering: ``record`` writes
those of the lifecycle inside the transaction of their change, ``runs.log.writer`` those that executions emit.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

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


def record(run: Run, entries: Iterable[Entry], at: datetime | None = None) -> None:
    """Append events to a locked run inside the current transaction; sets ``run.last_seq``, the caller saves.

    A new run may be saved behind its events: the database looks at the commit. They are published after it,
    once the run has a position: before that it is no part of its session's stream.
    """
    now = at or timezone.now()
    first = run.last_seq + 1
    entries = list(entries)
    if not entries:
        return
    encoded = [(seq, type, encoding.encode(data)) for seq, (type, data) in enumerate(entries, start=first)]
    key = run._meta.pk.get_db_prep_value(run.id, connection)
    at_key = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        insert(cursor, [(key, seq, type, data, at_key) for seq, type, data in encoded])
    tool_calls.project(run, entries, now)
    run.last_seq += len(entries)
    run.last_event_at = now
    if run.position is not None:
        told = [(type, encoding.event(run.id, seq, type, data, now)) for seq, type, data in encoded]
        position = run.position
        transaction.on_commit(lambda: publish(run.session_id, run.id, position, first, told))
