"""How a run ends. ``end`` is the one place where it becomes completed, failed, cancelled or interrupted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from runs import metrics, statements
from runs.errors import NotFound
from runs.lifecycle import cancel_operations, closing_events, dispatch, statistics, status
from runs.lifecycle.locks import locked_run
from runs.lifecycle.status import Outcome
from runs.log import events, tool_calls
from runs.models import Run, Session
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
    message: str  # a sentence for the user
    details: str | None = None  # what was raised, for operators


def finish(
    run_id: UUID,
    claim: int,
    to: RunStatus,
    *,
    error: Failure | None = None,
    reason: InterruptReason | None = None,
    repaired: bool = False,
    escalated: bool = False,
    not_begun: Collection[str] = (),
) -> Outcome:
    """The execution's own ending: completed, failed, interrupted, or cancelled once a cancel was accepted.

    ``repaired`` says that the checkpoint holds the turn in a sendable form; ``escalated`` that something
    had to be given up on. ``not_begun`` are ids of open tool calls that are known not to have begun.
    """
    try:
        with locked_run(run_id) as (session, run):
            has_ended = end(
                session,
                run,
                to,
                status.of_claim(claim),
                error=error,
                reason=reason,
                repaired=repaired,
                escalated=escalated,
                not_begun=not_begun,
            )
            return Outcome.DONE if has_ended else status.what_was_first(run_id, claim)
    except NotFound:
        return Outcome.FENCED


def interrupt(run_id: UUID, worker_id: UUID | None, reason: InterruptReason) -> bool:
    """Take a running run away from a worker that lost it; cancelled instead if a cancel had been accepted."""
    expected = status.of_worker(worker_id)
    try:
        with locked_run(run_id) as (session, run):
            if run.cancel_requested_at is None:
                return end(session, run, RunStatus.INTERRUPTED, expected, reason=reason)
            return end(session, run, RunStatus.CANCELLED, expected, outcome=CancelOutcome.RECONCILED)
    except NotFound:
        return False


def end(
    session: Session,
    run: Run,
    to: RunStatus,
    expected: Mapping[str, Any],
    *,
    asked: Mapping[str, Any] | None = None,
    error: Failure | None = None,
    reason: InterruptReason | None = None,
    outcome: CancelOutcome = CancelOutcome.CANCELLED,
    repaired: bool = False,
    escalated: bool = False,
    not_begun: Collection[str] = (),
) -> bool:
    """Give a locked run its one terminal status and event, its statistics, and settle its cancel.

    Only if its row has the values ``expected``; otherwise somebody was first and nothing changes.
    """
    now = timezone.now()
    # Of an execution that is lost, the last event is the last sign of work.
    is_lost = reason is InterruptReason.WORKER_LOST or outcome == CancelOutcome.RECONCILED
    worked_until = run.last_event_at if is_lost else now
    if run.position is None:
        run.position = session.last_position + 1
    statistics.pause(run, worked_until)
    statistics.close(run)
    run.finished_at = now
    run.repaired = repaired
    if to == RunStatus.CANCELLED and run.cancel_requested_at is None:
        run.cancel_requested_at = now
    closing = closing_events.of(run, to)
    run.message_count += closing_events.messages_in(closing)
    terminal: dict[str, Any] = {"statistics": numbers.of_run(run)}
    if error is not None:
        run.error_code, run.error_message, run.error_details = error.code, error.message, error.details
        terminal["error"] = {"code": error.code, "message": error.message}
    if reason is not None:
        terminal["reason"] = reason
    told = [*closing, (TERMINAL_EVENT[to], terminal)]
    if not status.write(run, to, told, now, **expected):
        return False

    session.has_changed = True
    session.last_position = max(session.last_position, run.position or 0)
    if repaired and run.resumes_id is not None:
        _mark_turn_repaired(run)
    if to == RunStatus.INTERRUPTED and (effects := tool_calls.interrupt_open(run, not_begun, worked_until)):
        terminal["effects"] = effects
    if to == RunStatus.CANCELLED:
        operation = cancel_operations.settle_ended(session, run, asked, outcome, escalated=escalated)
        if operation is not None:
            terminal["cancellation"] = representations.cancellation(operation)
    events.record(run, told, now)
    metrics.run_ended(run)
    if statements.a_queued_run(session.id):
        dispatch.request(session.id)
    return True


def mark_repaired(run_ids: Sequence[UUID]) -> None:
    """The checkpoint now holds these ended runs in a sendable form."""
    Run.objects.filter(id__in=run_ids, status__in=TERMINAL).update(repaired=True)


def _mark_turn_repaired(run: Run) -> None:
    """With a run, those that it resumes are in the history."""
    turn = Run.objects.filter(
        session=run.session_id, message_id=run.message_id, resolution=Resolution.RESUMED
    )
    turn.update(repaired=True)
