"""Requests to cancel: each is accepted, carried out at once, forced, or times out.

A run becomes cancelled in ``endings.end``.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.utils import timezone

from runs.lifecycle import cancel_operations, dispatch, endings, liveness
from runs.lifecycle.locks import locked_run, locked_session
from runs.live import notices
from runs.models import Cancellation, Run, Session
from runs.states import ACTIVE, CancelOutcome, RunStatus


def request_cancel(run_id: UUID, *, source: str, reason: str, requested_by: Any) -> Cancellation | None:
    """Accept a cancel of this run, or join the one in progress; None when the run had ended otherwise.

    A run without an execution ends at once, and so does one whose worker is dead.
    """
    asked = {"source": source, "reason": reason, "requested_by": requested_by}
    with locked_run(run_id) as (session, run):
        if run.is_terminal:
            return cancel_operations.of_ended(run)
        expected = {"status": run.status, "claim": run.claim}
        if run.status != RunStatus.RUNNING:
            if endings.end(session, run, RunStatus.CANCELLED, expected, asked=asked):
                return cancel_operations.of_ended(run)
        elif (operation := _accept(session, run, asked)) is not None:
            if run.worker is not None and not liveness.is_dead(run.worker):
                notices.stop_execution(run, fenced=False)
                return operation
            notices.stop_execution(run, fenced=True)  # in case it lives after all
            if endings.end(session, run, RunStatus.CANCELLED, expected, outcome=CancelOutcome.RECONCILED):
                return cancel_operations.of_ended(run)
    return request_cancel(run_id, **asked)  # somebody was first: look again


def request_session_cancel(
    session_id: UUID, *, source: str, reason: str, requested_by: Any
) -> Cancellation | None:
    """Cancel the active run and every run queued now; the operation of the first in line.

    When nothing is active and the latest run was cancelled, this request came late for that operation and
    gets its result; else None.
    """
    operations: list[Cancellation | None] = []
    with locked_session(session_id) as session:
        active = Run.objects.filter(session=session, status__in=ACTIVE).order_by("position", "queue_place")
        # SQLite and PostgreSQL sort nulls differently: those that left the queue come first.
        for run in sorted(active, key=lambda run: run.status == RunStatus.QUEUED):
            operation = request_cancel(run.id, source=source, reason=reason, requested_by=requested_by)
            operations.append(operation)
        if not operations:
            latest = Cancellation.objects.filter(run__session=session, run__position=session.last_position)
            operations.append(latest.filter(run__status=RunStatus.CANCELLED).order_by("-accepted_at").first())
    return operations[0]


def force_cancel(run_id: UUID, *, source: str, reason: str, requested_by: Any) -> Cancellation | None:
    """End a run durably without its worker, fence what still lives; None when it had ended otherwise."""
    asked = {"source": source, "reason": reason, "requested_by": requested_by}
    with locked_run(run_id) as (session, run):
        if run.is_terminal:
            return cancel_operations.of_ended(run)
        expected = {"status": run.status, "claim": run.claim}
        was_running = run.status == RunStatus.RUNNING
        if not was_running or _accept(session, run, asked) is not None:
            notices.stop_execution(run, fenced=True)
            outcome = CancelOutcome.RECONCILED if was_running else CancelOutcome.CANCELLED
            if endings.end(
                session,
                run,
                RunStatus.CANCELLED,
                expected,
                asked=asked,
                outcome=outcome,
                escalated=was_running,
            ):
                if was_running:
                    dispatch.fence(run.id)
                return cancel_operations.of_ended(run)
    return force_cancel(run_id, **asked)  # somebody was first: look again


def time_out_cancellation(cancellation_id: UUID) -> bool:
    """Settle an overdue operation whose worker lives and does not answer. The mark on the run stays."""
    run_id = Cancellation.objects.filter(id=cancellation_id).values_list("run_id", flat=True).first()
    if run_id is None:
        return False
    with locked_run(run_id) as (session, _):
        overdue = cancel_operations.unsettled(session)
        if overdue is None or overdue.id != cancellation_id:
            return False
        return cancel_operations.settle(session, overdue, CancelOutcome.TIMED_OUT)


def _accept(session: Session, run: Run, asked: Mapping[str, Any]) -> Cancellation | None:
    """The operation in progress on a running run, or one that is opened now; None if it runs no more."""
    operation = cancel_operations.unsettled(session)
    if operation is None or operation.run_id != run.id:
        now = timezone.now()
        run.cancel_requested_at = run.cancel_requested_at or now  # the first time stays
        if not run.write(status=RunStatus.RUNNING):
            return None
        operation = cancel_operations.accept(session, run, asked, now)
    return operation
