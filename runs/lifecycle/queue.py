"""The queue of a session: how a run gets into it, and how a worker takes the first one."""

from uuid import UUID

from django.db import transaction
from django.utils import timezone

from runs import statements
from runs.errors import NotFound
from runs.foundation import sql
from runs.lifecycle import dispatch
from runs.lifecycle.locks import locked_session
from runs.live import notices
from runs.log import events
from runs.models import Run, Session
from runs.states import EventType, RunStatus
from runs.wire import encoding


def enqueue(session: Session, run: Run, *, head: bool = False) -> Run:
    """Admit a new run to a locked session: durable, with its user message, and last in line (or first)."""
    session.last_line += 1
    run.session = session
    run.agent = session.agent
    run.line = -session.last_line if head else session.last_line
    run.status = RunStatus.QUEUED
    run.message_count = 0 if run.resumes_id else 1  # a resuming run goes on with the message that is there
    events.record(run, [_queued(run)], run.created_at)
    sql.insert(run)
    notices.touch(session)
    dispatch.request(session.id)
    return run


def claim(session_id: UUID, worker_id: UUID) -> Run | None:
    """Take the session's first in line for a worker, or None when there is nothing to execute now.

    An answered run goes first: it holds its place. Behind an interrupted run that nobody has decided
    about, the queue waits.
    """
    try:
        with locked_session(session_id) as session:
            worker = statements.worker.first(worker_id)
            if worker is None:
                return None  # taken for dead; it has to sign on again first
            run_id = _next_in_line(session)
            if run_id is None:
                return None
            run = statements.lock_run(run_id)[0]
            now = timezone.now()
            first_claim = run.status == RunStatus.QUEUED
            run.status = RunStatus.RUNNING
            run.claim += 1
            run.claimed_at = now
            run.worker = worker
            if first_claim:
                run.started_at = now
                leave(session, run)
                started = {
                    "worker": str(worker_id),
                    "resumes": _id(run.resumes_id),
                    "retries": _id(run.retries_id),
                }
                events.record(run, [(EventType.RUN_STARTED, started)])
            run.save_changes()
            run.session = session
            notices.touch(session)
            return run
    except NotFound:
        return None


def _next_in_line(session: Session) -> UUID | None:
    """The run of a locked session that may be claimed now."""
    places = sorted(
        statements.order_of_open_runs(session.id)
    )  # SQLite would go through all runs to have them in order
    for _, run_id, status, answers in places:
        if status != RunStatus.QUEUED:
            return run_id if status == RunStatus.WAITING and answers is not None else None
    return places[0][1] if places else None


def leave(session: Session, run: Run) -> None:
    """Give the run its place in the session's stream, and tell what was recorded before it had one."""
    session.last_position += 1
    run.position = position = session.last_position
    type, data = _queued(run)
    told = [(type, encoding.event(run.id, 1, type, encoding.encode(data), run.created_at))]
    transaction.on_commit(lambda: events.publish(run.session_id, run.id, position, 1, told))


def _queued(run: Run) -> events.Entry:
    return EventType.RUN_QUEUED, {"message": run.message_id, "input": run.input}


def _id(value: UUID | None) -> str | None:
    return str(value) if value else None
