"""The queue of a session: how a run gets into it, and how a worker takes the first one."""

from uuid import UUID

from django.utils import timezone

from runs import statements
from runs.errors import NotFound
from runs.foundation import sql
from runs.lifecycle import dispatch, status
from runs.lifecycle.locks import locked_session
from runs.log import events
from runs.models import Run, Session, Worker
from runs.states import EventType, RunStatus


def enqueue(session: Session, run: Run, *, head: bool = False) -> Run:
    """Admit a new run to a locked session: durable, with its user message, last in the queue or first."""
    session.last_queue_place += 1
    session.has_changed = True
    run.session = session
    run.agent = session.agent
    run.queue_place = -session.last_queue_place if head else session.last_queue_place
    run.message_count = 0 if run.resumes_id else 1  # a resuming run goes on with the message that is there
    queued = [events.queued(run)]
    events.count(run, queued, run.created_at)
    sql.insert(run)
    events.record(run, queued, run.created_at)
    dispatch.request(session.id)
    return run


def claim(session_id: UUID, worker_id: UUID) -> Run | None:
    """Take the session's first in the queue for a worker, or None when there is nothing to execute now.

    An answered run goes first. The queue waits behind an interrupted run that is undecided.
    """
    try:
        with locked_session(session_id) as session:
            worker = statements.worker.first(worker_id)
            if worker is None:
                return None  # it was taken for dead and has to register again first
            run_id = _next(session.id)
            return _take(session, statements.lock_run(run_id)[0], worker) if run_id is not None else None
    except NotFound:
        return None


def _take(session: Session, run: Run, worker: Worker) -> Run | None:
    now = timezone.now()
    expected = {"status": run.status, "claim": run.claim}
    told: list[events.Entry] = []
    if run.started_at is None:
        run.started_at = now
        run.position = session.last_position + 1
        started = {"worker": str(worker.id), "resumes": _id(run.resumes_id), "retries": _id(run.retries_id)}
        told = [(EventType.RUN_STARTED, started)]
    run.claim += 1
    run.claimed_at = now
    run.worker = worker
    run.session = session
    if not status.change(run, RunStatus.RUNNING, told, now, **expected):
        return None
    session.last_position = max(session.last_position, run.position or 0)
    session.has_changed = True
    return run


def _next(session_id: UUID) -> UUID | None:
    """The run of a locked session that is claimed next."""
    # Ordered here: SQLite would go through all runs to have them in order.
    return min(statements.claimable_runs(session_id), default=(0, None))[1]


def _id(value: UUID | None) -> str | None:
    return str(value) if value else None
