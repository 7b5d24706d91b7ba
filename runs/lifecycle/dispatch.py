"""Dispatch: after a change in the database, the process that executes runs is told.

It is a hint. The sweep dispatches again what nobody has claimed, and only a claim decides who executes.
"""

from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from runs import this_process
from runs.lifecycle import jobs


def is_shared() -> bool:
    """Whether worker processes with a shared queue execute the runs, instead of the web process."""
    return bool(settings.DISPATCH == "procrastinate")


def request(session_id: UUID) -> None:
    """Have the first run of the session's queue executed, once the current transaction has committed."""
    if is_shared():
        jobs.defer(session_id)
    else:
        transaction.on_commit(partial(offer, session_id))


def offer(session_id: UUID) -> bool:
    """Offer the session to this process now; whether it executes runs."""
    return this_process.engine is not None and this_process.engine.offer(session_id)


def fence(run_id: UUID) -> None:
    """Fence the execution of a run in this process, since the run has been taken from it. Only on SQLite.

    There the checkpoints are in another file, whose writes cannot look at the run's row. So this is called
    before the commit: no checkpoint is written behind a terminal status. If the commit fails after all, the
    sweep interrupts the run, which nothing executes any more. On PostgreSQL the row is the fence. To wait
    here would deadlock with a write that waits for our lock on that row.
    """
    if connection.vendor == "sqlite" and this_process.engine is not None:
        this_process.engine.fence(run_id)
