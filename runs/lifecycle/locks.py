"""Transactions that hold a session, or a run and its session.

The lock order is session, run, cancellation; by id within a kind. The locks keep the order of queue, log and
numbers. That a run changes its status only once is not left to them: see ``runs.lifecycle.status``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from runs.errors import NotFound
from runs.foundation.statements import Prepared
from runs.live import notices
from runs.models import Run, Session


@Prepared
def _session(session_id: Any) -> QuerySet[Session]:
    return Session.objects.select_for_update(no_key=True).filter(id=session_id)


@Prepared
def _session_of(run_id: Any) -> QuerySet[Session]:
    return Session.objects.select_for_update(no_key=True, of=("self",)).filter(runs=run_id)


@Prepared
def run_row(run_id: Any) -> QuerySet[Run]:
    """A run, locked; its session has to be locked before."""
    return Run.objects.select_for_update().filter(id=run_id)


@contextmanager
def locked_session(session_id: UUID) -> Iterator[Session]:
    """A transaction that holds the session, and writes it at its end if it has changed. Raises NotFound."""
    with transaction.atomic():
        session = _session.first(session_id)
        if session is None:
            raise NotFound
        yield session
        if session.has_changed:
            notices.touch(session)


@contextmanager
def locked_run(run_id: UUID) -> Iterator[tuple[Session, Run]]:
    """As ``locked_session``; holds the run as well, locked after its session. Raises NotFound."""
    with transaction.atomic():
        session = _session_of.first(run_id)
        run = run_row.first(run_id) if session is not None else None
        if session is None or run is None:
            raise NotFound
        run.session = session
        yield session, run
        if session.has_changed:
            notices.touch(session)
