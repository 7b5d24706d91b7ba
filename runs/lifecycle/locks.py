"""Transactions that hold a session, or a run and its session.

The lock order is session, run, cancellation; by id within a kind. The locks keep the
order of the queue, of the log and of the numbers. They are not what guards a status: see
``runs.lifecycle.status``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import transaction

from runs import statements
from runs.errors import NotFound
from runs.live import notices
from runs.models import Run, Session


@contextmanager
def locked_session(session_id: UUID) -> Iterator[Session]:
    """A transaction that holds the session, and writes it at its end if it has changed. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session.first(session_id)
        if session is None:
            raise NotFound
        yield session
        if session.has_changed:
            notices.touch(session)


@contextmanager
def locked_run(run_id: UUID) -> Iterator[tuple[Session, Run]]:
    """As ``locked_session``; holds the run as well, locked after its session. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session_of.first(run_id)
        run = statements.lock_run.first(run_id) if session is not None else None
        if session is None or run is None:
            raise NotFound
        run.session = session
        yield session, run
        if session.has_changed:
            notices.touch(session)
