"""One cancel operation per session: accept or join, settle; and the projection that clients see.

``cancellation_pending`` is derived: an unsettled Cancellation exists. ``cancellation_revision`` grows by
one whenever that changes, in the same transaction. The callers hold the lock of the session.
"""

from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef
from django.utils import timezone

from runs import metrics
from runs.live import notices
from runs.models import Cancellation, Run, Session
from runs.states import CancelOutcome

UNSETTLED = Exists(Cancellation.objects.filter(session=OuterRef("pk"), settled_at__isnull=True))


def unsettled(session: Session) -> Cancellation | None:
    """The operation in progress, if any."""
    return Cancellation.objects.filter(session=session, settled_at__isnull=True).first()


def accept(
    session: Session, run: Run, *, source: str, reason: str, requested_by: Any, at: datetime
) -> Cancellation:
    """Open the operation for a running run; pending becomes true."""
    cancellation = Cancellation.objects.create(
        session=session, run=run, source=source, reason=reason, requested_by=requested_by, accepted_at=at
    )
    session.cancellation_revision += 1
    notices.touch(session)
    notices.cancellation_changed(session, pending=True)
    return cancellation


def record_settled(
    session: Session,
    run: Run,
    *,
    source: str,
    reason: str,
    requested_by: Any,
    at: datetime,
    outcome: CancelOutcome = CancelOutcome.CANCELLED,
    escalated: bool = False,
) -> Cancellation:
    """Record an operation that was over when it was accepted: no pending, and the revision stays."""
    return Cancellation.objects.create(
        session=session,
        run=run,
        source=source,
        reason=reason,
        requested_by=requested_by,
        accepted_at=at,
        settled_at=at,
        outcome=outcome,
        escalated=escalated,
    )


def settle(
    session: Session, cancellation: Cancellation, outcome: CancelOutcome, *, escalated: bool = False
) -> None:
    """Close the operation; pending becomes false."""
    cancellation.settled_at = max(timezone.now(), cancellation.accepted_at)
    cancellation.outcome = outcome
    cancellation.escalated = escalated
    cancellation.save()
    metrics.cancel_settled(cancellation)
    session.cancellation_revision += 1
    notices.touch(session)
    notices.cancellation_changed(session, pending=False)
