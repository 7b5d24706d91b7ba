"""Cancels of runs, as they are asked for. Where a run becomes cancelled by one: ``endings.end``."""

from typing import Any
from uuid import UUID

from django.utils import timezone

from runs.lifecycle import cancellation, dispatch, endings, liveness
from runs.lifecycle.locks import locked_run, locked_session
from runs.live import notices
from runs.models import Cancellation, Run
from runs.states import ACTIVE, TERMINAL, CancelOutcome, RunStatus


def request_cancel(run_id: UUID, *, source: str, reason: str, requested_by: Any) -> Cancellation | None:
    """Accept a cancel of this run, or join the one in progress; None when the run had ended otherwise.

    A run without an execution ends at once, and so does one whose worker is dead.
    """
    with locked_run(run_id) as (session, run):
        if run.status in TERMINAL:
            return endings.cancellation_of(run)
        who = {"source": source, "reason": reason, "requested_by": requested_by}
        if run.status != RunStatus.RUNNING:
            endings.end(session, run, RunStatus.CANCELLED, asked=who)
            return Cancellation.objects.get(run=run)
        operation = cancellation.unsettled(session)
        if operation is None or operation.run_id != run.id:
            now = timezone.now()
            run.cancel_requested_at = run.cancel_requested_at or now
            run.save_changes()
            operation = cancellation.accept(session, run, at=now, **who)
        if run.worker is None or liveness.is_dead(run.worker):
            notices.stop_execution(run, fenced=True)  # should it live after all
            endings.end(session, run, RunStatus.CANCELLED, outcome=CancelOutcome.RECONCILED)
            operation.refresh_from_db()
        else:
            notices.stop_execution(run, fenced=False)
        return operation


def request_session_cancel(
    session_id: UUID, *, source: str, reason: str, requested_by: Any
) -> Cancellation | None:
    """Cancel the active run and every run queued now; the operation of the first in line.

    When nothing is active and the latest run was cancelled, this request came late for that operation and
    gets its result; else None.
    """
    operations: list[Cancellation | None] = []
    with locked_session(session_id) as session:
        active = Run.objects.filter(session=session, status__in=ACTIVE).order_by("position", "line")
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
    with locked_run(run_id) as (session, run):
        if run.status in TERMINAL:
            return endings.cancellation_of(run)
        who = {"source": source, "reason": reason, "requested_by": requested_by}
        was_running = run.status == RunStatus.RUNNING
        if was_running:
            dispatch.seal(run.id)
        if was_running and cancellation.unsettled(session) is None:
            now = timezone.now()
            run.cancel_requested_at = run.cancel_requested_at or now
            cancellation.accept(session, run, at=now, **who)
        notices.stop_execution(run, fenced=True)
        outcome = CancelOutcome.RECONCILED if was_running else CancelOutcome.CANCELLED
        endings.end(session, run, RunStatus.CANCELLED, asked=who, outcome=outcome, escalated=was_running)
        return Cancellation.objects.filter(run=run).latest("accepted_at")


def time_out_cancellation(cancellation_id: UUID) -> bool:
    """Settle an overdue operation whose worker lives and does not answer. The mark on the run stays."""
    run_id = Cancellation.objects.filter(id=cancellation_id).values_list("run_id", flat=True).first()
    if run_id is None:
        return False
    with locked_run(run_id) as (session, _):
        overdue = cancellation.unsettled(session)
        if overdue is None or overdue.id != cancellation_id:
            return False
        cancellation.settle(session, overdue, CancelOutcome.TIMED_OUT)
        return True
