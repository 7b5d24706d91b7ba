"""Notices that are sent when the current transaction has committed. They are hints: the facts are stored."""

from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from runs.foundation import sql
from runs.live import bus
from runs.models import Run, Session

_SAVED_FIELDS = (
    "title",
    "title_source",
    "updated_at",
    "cancellation_revision",
    "last_position",
    "last_queue_place",
)


def touch(session: Session) -> None:
    """Save a locked session with a later ``updated_at``, and notify its followers."""
    session.updated_at = max(timezone.now(), session.updated_at + timedelta(microseconds=1))
    sql.update(session, _SAVED_FIELDS)
    session_changed(session)


def session_changed(session: Session) -> None:
    """Have followers read the session again."""
    _after_commit(bus.session_group(session.id), {"kind": "changed"})
    _after_commit(bus.user_group(session.owner_id), {"kind": "changed", "session": str(session.id)})


def cancellation_changed(session: Session, pending: bool) -> None:
    """A cancel of this session became pending or settled."""
    _after_commit(
        bus.session_group(session.id),
        {"kind": "cancellation", "pending": pending, "revision": session.cancellation_revision},
    )


def session_deleted(session_id: UUID, owner_id: Any) -> None:
    """The session is gone."""
    _after_commit(bus.session_group(session_id), {"kind": "deleted"})
    _after_commit(bus.user_group(owner_id), {"kind": "deleted", "session": str(session_id)})


def effect_changed(run: Run, call_id: str, effect: str) -> None:
    """A straggler ended, so the effect of its tool call is known."""
    _after_commit(
        bus.session_group(run.session_id),
        {"kind": "effect", "run": str(run.id), "tool_call": call_id, "effect": effect},
    )


def stop_execution(run: Run, *, fenced: bool) -> None:
    """Notify the worker of ``run``: a cancel was accepted or, if ``fenced``, the run was taken away."""
    if run.worker_id:
        _after_commit(
            bus.worker_group(run.worker_id), {"kind": "fenced" if fenced else "cancel", "run": str(run.id)}
        )


def _after_commit(group: str, message: dict[str, Any]) -> None:
    transaction.on_commit(partial(bus.publish, group, message))
