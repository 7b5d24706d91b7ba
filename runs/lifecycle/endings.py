"""How a run ends. ``end`` is the one place where it gets its terminal status."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from runs import metrics, statements
from runs.errors import NotFound
from runs.lifecycle import cancellation, closing_events, dispatch, queue, statistics
from runs.lifecycle.locks import locked_run
from runs.lifecycle.status import Outcome
from runs.live import notices
from runs.log import events
from runs.models import Cancellation, Run, Session
from runs.states import (
    TERMINAL,
    TERMINAL_EVENT,
    CancelOutcome,
    ErrorCode,
    InterruptReason,
    Resolution,
    RunStatus,
)
from runs.wire import representations
from runs.wire import statistics as numbers


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run failed."""

    code: ErrorCode
    message: str  # a sentence a person can read


def finish(
    run_id: UUID,
    claim: int,
    status: RunStatus,
    *,
    error: Failure | None = None,
    reason: InterruptReason | None = None,
    repaired: bool = False,
    escalated: bool = False,
) -> Outcome:
    """The execution's own ending: completed, failed, interrupted, or cancelled once a cancel was accepted.

    ``repaired`` says that the checkpoint holds the turn in a sendable form; ``escalated`` that something
    had to be given up on.
    """
    with owned(run_id, claim) as own:
        if isinstance(own, Outcome):
            return own
        session, run = own
        if run.cancel_requested_at is not None and status != RunStatus.CANCELLED:
            return Outcome.CANCEL_FIRST
        end(session, run, status, error=error, reason=reason, repaired=repaired, escalated=escalated)
        return Outcome.DONE


def interrupt(run_id: UUID, worker_id: UUID | None, reason: InterruptReason) -> bool:
    """Take a running run away from a worker that lost it; cancelled instead if a cancel had been accepted."""
    try:
        with locked_run(run_id) as (session, run):
            if run.status != RunStatus.RUNNING or run.worker_id != worker_id:
                return False
            end(session, run, RunStatus.INTERRUPTED, reason=reason)
            return True
    except NotFound:
        return False


def end(
    session: Session,
    run: Run,
    status: RunStatus,
    *,
    asked: Mapping[str, Any] | None = None,
    error: Failure | None = None,
    reason: InterruptReason | None = None,
    outcome: CancelOutcome = CancelOutcome.CANCELLED,
    repaired: bool = False,
    escalated: bool = False,
) -> None:
    """Give a locked active run its one terminal status and event, with statistics and settling."""
    now = timezone.now()
    # Of an execution that is lost, the last event is the last sign of work.
    lost = reason is InterruptReason.WORKER_LOST or outcome == CancelOutcome.RECONCILED
    if run.cancel_requested_at is not None and status != RunStatus.CANCELLED:
        # An accepted cancel wins; whoever ends the run for another reason reconciles it.
        status, error, reason, outcome = RunStatus.CANCELLED, None, None, CancelOutcome.RECONCILED
    before = run.status
    if before == RunStatus.QUEUED:
        queue.leave(session, run)
    elif before == RunStatus.RUNNING:
        statistics.pause(run, run.last_event_at if lost else now)
    statistics.close(run)
    run.status = status
    run.finished_at = now
    run.repaired = repaired
    if repaired and run.resumes_id is not None:
        _mark_turn_repaired(run)
    if error is not None:
        run.error_code, run.error_message = error.code, error.message
    if status == RunStatus.CANCELLED and run.cancel_requested_at is None:
        run.cancel_requested_at = now

    operation = None
    if status == RunStatus.CANCELLED:
        operation = _settle(session, run, asked, outcome, escalated=escalated)
    owed = closing_events.owed(run, lost=lost)
    run.message_count += closing_events.messages_in(owed)
    terminal: dict[str, Any] = {"statistics": numbers.of_run(run)}
    if error is not None:
        terminal["error"] = {"code": error.code, "message": error.message}
    if operation is not None:
        terminal["cancellation"] = representations.cancellation(operation)
    if reason is not None:
        terminal["reason"] = reason
    events.record(run, [*owed, (TERMINAL_EVENT[status], terminal)], now)
    run.save_changes()
    metrics.run_ended(run)
    notices.touch(session)
    if statements.a_queued_run(session.id):
        dispatch.request(session.id)


def _settle(
    session: Session,
    run: Run,
    asked: Mapping[str, Any] | None,
    outcome: CancelOutcome,
    *,
    escalated: bool,
) -> Cancellation | None:
    """Settle the operation that ends this run, or record the one that ended it at once."""
    operation = Cancellation.objects.filter(run=run, settled_at__isnull=True).first()
    if operation is not None:
        cancellation.settle(session, operation, outcome, escalated=escalated)
        return operation
    if asked is None and (late := cancellation_of(run)) is not None:
        # It had timed out, and is carried out all the same: whoever tries again has to hear of that.
        asked = {"source": late.source, "reason": late.reason, "requested_by": late.requested_by}
    if asked is None:
        return None
    at = timezone.now()
    return cancellation.record_settled(session, run, at=at, outcome=outcome, escalated=escalated, **asked)


def cancellation_of(run: Run) -> Cancellation | None:
    """The last operation on an ended run, if that is what ended it."""
    if run.status != RunStatus.CANCELLED:
        return None
    return Cancellation.objects.filter(run=run).order_by("-accepted_at").first()


@contextmanager
def owned(run_id: UUID, claim: int) -> Iterator[tuple[Session, Run] | Outcome]:
    """The locked run of an execution, or FENCED when it is not running under this claim number any more."""
    try:
        with locked_run(run_id) as (session, run):
            if run.status != RunStatus.RUNNING or run.claim != claim:
                yield Outcome.FENCED
            else:
                yield session, run
    except NotFound:
        yield Outcome.FENCED


def mark_repaired(run_ids: Sequence[UUID]) -> None:
    """The checkpoint now holds these ended runs in a sendable form."""
    Run.objects.filter(id__in=run_ids, status__in=TERMINAL).update(repaired=True)


def _mark_turn_repaired(run: Run) -> None:
    """With a run, those that it resumes are in the history."""
    turn = Run.objects.filter(
        session=run.session_id, message_id=run.message_id, resolution=Resolution.RESUMED
    )
    turn.update(repaired=True)
