"""What operators may do to what is not theirs: each with a permission, a reason, and an audit entry.

The plain functions run one short transaction each, which holds the change together with its audit entry.
They work on runs of any process, dead and frozen ones included: nothing here waits for a worker. The
``async`` ones touch the checkpoints and belong on an event loop. Whoever lacks the permission gets
``Forbidden`` for what is theirs, and ``NotFound`` for everything else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from runs.errors import Conflict, Forbidden, Invalid, NotFound
from runs.foundation.limits import REASON_LIMIT
from runs.lifecycle import admission, cancel_requests, locks
from runs.models import UNSETTLED, AuditEntry, Cancellation, Run, Session
from runs.recovery import deletion, reconciliation
from runs.states import TERMINAL, CancelSource
from runs.wire import contract, representations

# Reading the same session again within this time leaves no further audit entry: a page that follows a run
# live asks every few seconds, and it is one reading.
READING_LASTS = timedelta(minutes=10)

READ_CHATS = "runs.read_chats"

# Commands that may decide what becomes of an interrupted run.
_DECIDING = ("reconcile", "resume", "dismiss")


@dataclass(slots=True)
class Done:
    """What a command did to one run."""

    run: Run  # as it is now
    changed: bool
    told: list[str]  # a sentence each
    operation: Cancellation | None = None  # of a cancel, unless the run had ended otherwise


# Runs


def cancel(actor: AbstractBaseUser, run_id: UUID | str, reason: str) -> Done:
    """Request a cancel, as its user could. It does not wait."""
    asked: dict[str, Any] = {"source": CancelSource.OPERATOR, "reason": reason, "requested_by": actor}

    def apply(run: Run) -> Done:
        before = run.status
        pending = Cancellation.objects.filter(UNSETTLED, run=run).exists()
        operation = cancel_requests.request_cancel(run.id, **asked)
        if before in TERMINAL:
            return Done(run, False, [f"It had ended already: {before}."], operation)
        run.refresh_from_db()
        if run.status in TERMINAL:
            return Done(run, True, ["It was cancelled."], operation)
        if pending:
            return Done(run, False, ["A cancel was pending already; this one joined it."], operation)
        return Done(run, True, ["The cancel was accepted; its worker is told to stop."], operation)

    return _command(actor, run_id, "cancel", reason, apply)


def force_cancel(actor: AbstractBaseUser, run_id: UUID | str, reason: str) -> Done:
    """End a run durably without its worker, and fence what still lives."""
    asked: dict[str, Any] = {"source": CancelSource.OPERATOR, "reason": reason, "requested_by": actor}

    def apply(run: Run) -> Done:
        before = run.status
        operation = cancel_requests.force_cancel(run.id, **asked)
        run.refresh_from_db()
        if before in TERMINAL:
            return Done(run, False, [f"It had ended already: {before}."], operation)
        return Done(run, True, ["It was ended without its worker."], operation)

    return _command(actor, run_id, "force_cancel", reason, apply)


def reconcile(actor: AbstractBaseUser, run_id: UUID | str, reason: str) -> Done:
    """Bring a run into order, see ``runs.recovery.reconciliation``."""

    def apply(run: Run) -> Done:
        result = reconciliation.reconcile(run)
        run.refresh_from_db()
        return Done(run, result.changed, result.told)

    return _command(actor, run_id, "reconcile", reason, apply)


def resume(actor: AbstractBaseUser, run_id: UUID | str, reason: str) -> Done:
    """Go on from the checkpoint of an interrupted run in a new run."""

    def apply(run: Run) -> Done:
        new = admission.resume(run, run.requested_by)  # still the turn of whoever asked for it
        run.refresh_from_db()
        return Done(run, True, [f"It goes on in the run {new.id}."])

    return _command(actor, run_id, "resume", reason, apply)


def dismiss(actor: AbstractBaseUser, run_id: UUID | str, reason: str) -> Done:
    """Decide that nobody goes on from an interrupted run."""

    def apply(run: Run) -> Done:
        return Done(admission.dismiss(run), True, ["It was dismissed; its session is free again."])

    return _command(actor, run_id, "dismiss", reason, apply)


def _command(
    actor: AbstractBaseUser, run_id: UUID | str, action: str, reason: str, apply: Callable[[Run], Done]
) -> Done:
    """One transaction: the change, or why there is none, and the audit entry that says so."""
    run = _run(actor, run_id, f"runs.{action}_run")
    reason = checked_reason(reason)
    with locks.locked_run(run.id) as (_, locked):
        decided_before = locked.resolution
        try:
            with transaction.atomic():
                done = apply(locked)
        except Conflict as refusal:
            done = Done(locked, False, [refusal.message])
        details: dict[str, Any] = {"changed": done.changed, "done": done.told}
        if done.operation is not None:
            details["outcome"] = done.operation.outcome
        if done.run.resolution != decided_before:
            details["resolution"] = done.run.resolution
        _audit(actor, action, str(run.id), reason, details)
    return done


def reasons_of_decisions(runs: Iterable[UUID | str]) -> dict[tuple[str, str], str]:
    """Why operators decided about interrupted runs, for their users: ``{(run id, resolution): reason}``."""
    entries = AuditEntry.objects.filter(target__in=[str(run) for run in runs], action__in=_DECIDING)
    decided = entries.order_by("at").values_list("target", "details", "reason")
    return {
        (target, details["resolution"]): reason
        for target, details, reason in decided
        if "resolution" in details
    }


# Deleting


async def delete_session(actor: AbstractBaseUser, session_id: UUID, reason: str) -> None:
    """Force-cancel what is active, delete the session, its log and checkpoints."""
    _require(actor, "runs.delete_session")
    await deletion.delete(session_id, actor, checked_reason(reason))


async def delete_user(actor: AbstractBaseUser, user_id: Any, reason: str) -> None:
    """Deactivate an account, delete its sessions one after the other, then the account.

    Breaking off in between leaves a deactivated account with fewer sessions; doing it again goes on.
    """
    _require(actor, "auth.delete_user")
    await deletion.delete_user(user_id, actor, checked_reason(reason))


# Reading


def may_read(actor: AbstractBaseUser, owner_id: Any) -> bool:
    """Whether the actor may see the words of this owner's sessions."""
    return actor.pk == owner_id or _allowed(actor, READ_CHATS)


def readable(actor: AbstractBaseUser, owner: str) -> Q:
    """The same as a condition on rows whose field ``owner`` says who owns them."""
    return ~Q(pk=None) if _allowed(actor, READ_CHATS) else Q(**{owner: actor.pk})


def note_reading(actor: AbstractBaseUser, session: Session) -> None:
    """Put on record that somebody reads a session that is not theirs, once for each reading."""
    if actor.pk == session.owner_id:
        return
    recent = AuditEntry.objects.filter(
        target=str(session.id),
        actor=actor.get_username(),
        action="read_chat",
        at__gt=Now() - READING_LASTS,
    )
    if not recent.exists():
        _audit(actor, "read_chat", str(session.id), "", {"owner": session.owner.get_username()})


async def history(
    actor: AbstractBaseUser, session: Session, *, limit: int | None, before: str | None
) -> contract.History:
    """The history as its user sees it, see ``runs.reading.history``.

    The caller has put the reading on record.
    """
    if not may_read(actor, session.owner_id):
        raise Forbidden
    from runs.reading import history as histories  # LangChain, which commands need not load

    return await histories.read(session, limit=limit, before=before, audience=None)


# Who may


def checked_reason(reason: Any) -> str:
    """Why an operator does something. Raises Invalid when nothing is said."""
    if not isinstance(reason, str) or not reason.strip():
        raise Invalid('"reason" is missing: say why this has to be done.')
    return admission.checked_text(reason, "reason")[:REASON_LIMIT]


def _run(actor: AbstractBaseUser, run_id: UUID | str, permission: str) -> Run:
    try:
        found = Run.objects.select_related("session").filter(id=UUID(str(run_id))).first()
    except ValueError:
        raise NotFound from None
    if found is None:
        raise NotFound
    if not _allowed(actor, permission):
        raise Forbidden if found.session.owner_id == actor.pk else NotFound
    return found


def _require(actor: AbstractBaseUser, permission: str) -> None:
    if not _allowed(actor, permission):
        raise Forbidden


def _allowed(actor: AbstractBaseUser, permission: str) -> bool:
    return bool(actor.has_perm(permission))  # type: ignore[attr-defined]


def _audit(actor: AbstractBaseUser, action: str, target: str, reason: str, details: dict[str, Any]) -> None:
    AuditEntry.objects.create(
        actor=actor.get_username(), action=action, target=target, reason=reason, details=details
    )


def representation(done: Done) -> contract.Reconciliation:
    """``{"run": Run, "changed": bool, "done": [sentence]}``."""
    return {"run": representations.run(done.run), "changed": done.changed, "done": done.told}
