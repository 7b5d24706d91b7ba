"""The cancel operation of a session: how it is accepted and settled, and what clients see of it.

``cancellation_pending`` is derived: an unsettled Cancellation exists. ``cancellation_revision`` grows by
one whenever that changes, in the same transaction. The callers hold the lock of the session.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from runs import metrics
from runs.foundation import sql
from runs.live import notices
from runs.models import UNSETTLED, Cancellation, Run, Session
from runs.states import CancelOutcome, RunStatus


def unsettled(session: Session) -> Cancellation | None:
    """The operation in progress, if any."""
    found = Cancellation.objects.filter(UNSETTLED, session=session)
    return found.select_related("requested_by").first()  # whose name its outcome is told with


def of_ended(run: Run) -> Cancellation | None:
    """The last operation on an ended run, if that is what ended it."""
    if run.status != RunStatus.CANCELLED:
        return None
    return Cancellation.objects.filter(run=run).order_by("-accepted_at").first()


def accept(session: Session, run: Run, asked: Mapping[str, Any], at: datetime) -> Cancellation:
    """Open the operation for a running run; pending becomes true."""
    cancellation = Cancellation.objects.create(session=session, run=run, accepted_at=at, **asked)
    _pending_changes(session, True)
    return cancellation


def settle(
    session: Session, cancellation: Cancellation, outcome: CancelOutcome, *, escalated: bool = False
) -> bool:
    """Close the operation, unless somebody has; pending becomes false."""
    cancellation.settled_at = max(timezone.now(), cancellation.accepted_at)
    cancellation.outcome = outcome
    cancellation.escalated = escalated
    if not sql.update(cancellation, ("settled_at", "outcome", "escalated"), {"settled_at": None}):
        return False
    metrics.cancel_settled(cancellation)
    _pending_changes(session, False)
    return True


def settle_ended(
    session: Session,
    run: Run,
    asked: Mapping[str, Any] | None,
    outcome: CancelOutcome,
    *,
    escalated: bool,
) -> Cancellation | None:
    """Settle the operation that ended this run, or record the one that ended it at once.

    A recorded one is settled when it is accepted. So nothing becomes pending, and the revision stays.
    """
    operation = unsettled(session)
    if operation is not None and operation.run_id == run.id:
        settle(session, operation, outcome, escalated=escalated)
        return operation
    if asked is None and (late := of_ended(run)) is not None:
        # It had timed out and ends the run now. A client that tries again has to learn that.
        asked = {"source": late.source, "reason": late.reason, "requested_by": late.requested_by}
    if asked is None:
        return None
    now = timezone.now()
    return Cancellation.objects.create(
        session=session,
        run=run,
        accepted_at=now,
        settled_at=now,
        outcome=outcome,
        escalated=escalated,
        **asked,
    )


def _pending_changes(session: Session, pending: bool) -> None:
    session.cancellation_revision += 1
    session.has_changed = True
    notices.cancellation_changed(session, pending)
