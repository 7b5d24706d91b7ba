"""Transactions that hold a session, or a run and its session.

The lock order is session, run, cancellation; by id within a kind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import transaction

from runs import statements
from runs.errors import NotFound
from runs.models import Run, Session


@contextmanager
def locked_session(session_id: UUID) -> Iterator[Session]:
    """A transaction that holds the session. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session.first(session_id)
        if session is None:
            raise NotFound
        yield session


@contextmanager
def locked_run(run_id: UUID) -> Iterator[tuple[Session, Run]]:
    """A transaction that holds the run and, before it, its session. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session_of.first(run_id)
        run = statements.lock_run.first(run_id) if session is not None else None
        if session is None or run is None:
            raise NotFound
        run.session = session
        yield session, run
