"""The way from a change in the database to whoever executes runs.

Dispatching is a hint, like all telling: the sweep dispatches again what nobody took, and claim alone
decides who executes what.
"""

from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from runs import process
from runs.lifecycle import jobs


def is_shared() -> bool:
    """Whether runs are executed by worker processes, who share a queue, instead of by the web process."""
    return bool(settings.DISPATCH == "procrastinate")


def request(session_id: UUID) -> None:
    """Have the session's first in line claimed and executed, once the current transaction has committed."""
    if is_shared():
        jobs.defer(session_id)
    else:
        transaction.on_commit(lambda: offer(session_id))


def offer(session_id: UUID) -> bool:
    """Offer the session to this process now; whether it executes runs."""
    return process.current is not None and process.current.offer(session_id)


def fence(run_id: UUID) -> None:
    """Before a run is taken from a live execution: the checkpoint file of SQLite cannot see a run's status,
    so the gate of its one process is closed by hand. On PostgreSQL the run's row is the fence, and a write
    that has begun may be waiting for our lock on it."""
    if connection.vendor != "sqlite":
        return
    if process.current is not None:
        process.current.fence(run_id)
