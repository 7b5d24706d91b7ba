"""Rows of the database as objects of the wire contract."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from runs import statements
from runs.models import Cancellation, Run, Session, Worker
from runs.states import CancelOutcome, RunStatus, SessionStatus
from runs.wire import contract, statistics
from runs.wire.encoding import timestamp


def with_status(sessions: QuerySet[Session]) -> QuerySet[Session]:
    """Annotate what ``session_status`` reads."""
    return sessions.annotate(**statements.SESSION_STATUS)


def filter_status(sessions: QuerySet[Session], status: str) -> QuerySet[Session]:
    """Annotated sessions that show ``status``."""
    free = Q(occupied_by__isnull=True)
    return sessions.filter(
        {
            SessionStatus.RUNNING: Q(occupied_by=RunStatus.RUNNING),
            SessionStatus.WAITING: Q(occupied_by=RunStatus.WAITING),
            SessionStatus.INTERRUPTED: free & Q(is_interrupted=True),
            SessionStatus.QUEUED: free & Q(is_interrupted=False, has_queue=True),
            SessionStatus.IDLE: free & Q(is_interrupted=False, has_queue=False),
        }[SessionStatus(status)]
    )


def session_status(session: Any) -> str:
    """The status of an annotated session."""
    if session.occupied_by is not None:
        return str(session.occupied_by)
    if session.is_interrupted:
        return SessionStatus.INTERRUPTED
    return SessionStatus.QUEUED if session.has_queue else SessionStatus.IDLE


def sessions(page: Iterable[Session]) -> list[contract.Session]:
    """Session for each of these annotated ones, in a fixed number of queries."""
    page = list(page)
    ids = [session.id for session in page]
    numbers = statistics.of_sessions(ids)
    active: dict[UUID, Run] = {}
    queued: dict[UUID, list[contract.QueuedTurn]] = defaultdict(list)
    occupying = []
    for run in statements.active_runs(ids):
        if run.status == RunStatus.QUEUED:
            queued[run.session_id].append(
                {
                    "run": str(run.id),
                    "message": run.message_id,
                    "input": run.input,
                    "created_at": timestamp(run.created_at),
                }
            )
        else:
            active[run.session_id] = run
            occupying.append(run)
    represented = dict(zip([run.session_id for run in occupying], runs(occupying), strict=True))
    return [
        {
            "id": str(session.id),
            "title": session.title,
            "agent": session.agent,
            "origin": session.origin,
            "status": session_status(session),
            "active_run": represented.get(session.id),
            "queued": queued[session.id],
            "created_at": timestamp(session.created_at),
            "updated_at": timestamp(session.updated_at),
            "cancellation_pending": session.pending,  # type: ignore[attr-defined]
            "cancellation_revision": session.cancellation_revision,
            "statistics": numbers[session.id],
        }
        for session in page
    ]


def summary(session: Session) -> contract.SessionSummary:
    """The entry of an annotated session in its owner's list."""
    return {
        "id": str(session.id),
        "title": session.title,
        "status": session_status(session),
        "updated_at": timestamp(session.updated_at),
    }


def runs(page: Sequence[Run]) -> list[contract.Run]:
    """Run for each, in a fixed number of queries."""
    latest: dict[UUID, Cancellation] = {}
    # A run without a mark of a cancel has no Cancellation.
    if asked := [run.id for run in page if run.cancel_requested_at is not None]:
        operations = Cancellation.objects.filter(run__in=asked).select_related("requested_by")
        latest = {operation.run_id: operation for operation in operations.order_by("accepted_at")}
    return [_run(run, latest.get(run.id)) for run in page]


def run(run: Run) -> contract.Run:
    """Run."""
    return runs([run])[0]


def cancellation(operation: Cancellation) -> contract.Cancellation:
    """Cancellation."""
    return {
        "id": str(operation.id),
        "session": str(operation.session_id),
        "run": str(operation.run_id),
        "source": operation.source,
        "reason": operation.reason,
        "requested_by": operation.requested_by.get_username() if operation.requested_by else None,
        "accepted_at": timestamp(operation.accepted_at),
        "settled_at": _time(operation.settled_at),
        "outcome": operation.outcome,
        "escalated": operation.escalated,
    }


def nothing_to_cancel(
    session_id: UUID, run_id: UUID | None, *, source: str, reason: str, requested_by: Any
) -> contract.Cancellation:
    """The Cancellation when there was nothing left to cancel. It has no row."""
    return {
        "id": None,
        "session": str(session_id),
        "run": str(run_id) if run_id else None,
        "source": source,
        "reason": reason,
        "requested_by": requested_by.get_username() if requested_by else None,
        "accepted_at": None,
        "settled_at": None,
        "outcome": CancelOutcome.ALREADY_FINISHED,
        "escalated": False,
    }


def workers(page: Iterable[Worker]) -> list[contract.Worker]:
    """Worker for each."""
    return [
        {
            "id": str(found.id),
            "host": found.host,
            "pid": found.pid,
            "version": found.version,
            "started_at": timestamp(found.started_at),
            "heartbeat_at": timestamp(found.heartbeat_at),
            "active_runs": found.active_runs,
            "stragglers": found.stragglers,
        }
        for found in page
    ]


def _run(run: Run, operation: Cancellation | None) -> contract.Run:
    return {
        "id": str(run.id),
        "session": str(run.session_id),
        "position": run.position,
        "status": run.status,
        "resolution": run.resolution,
        "on_disconnect": run.on_disconnect,
        "resumes": str(run.resumes_id) if run.resumes_id else None,
        "retries": str(run.retries_id) if run.retries_id else None,
        "questions": run.questions if run.status == RunStatus.WAITING and run.answers is None else None,
        "error": {"code": run.error_code, "message": run.error_message} if run.error_code else None,
        "cancellation": cancellation(operation) if operation else None,
        "statistics": statistics.of_run(run),
        "last_seq": run.last_seq,
        "stragglers": run.stragglers,
        "created_at": timestamp(run.created_at),
        "started_at": _time(run.started_at),
        "finished_at": _time(run.finished_at),
    }


def _time(at: datetime | None) -> str | None:
    return timestamp(at) if at else None
