"""Deletes a session, an account, or unused sessions, with logs and checkpoints. Audit and totals stay.

Active runs are cancelled first. A single run cannot be deleted: its words are in the checkpoints of each
later turn, and nobody can take them out of the state of an unknown graph.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from runs import this_process
from runs.errors import NotFound
from runs.foundation.database import in_thread
from runs.lifecycle import cancel_requests, locks
from runs.live import notices
from runs.memory.checkpoints import Checkpoints, process_checkpoints
from runs.models import AuditEntry, DailyTotal, Run, Session
from runs.recovery import orphans
from runs.states import ACTIVE, CancelSource

_SUMMED = ("message_count", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "duration_ms")
# This many sessions are looked up at a time.
_BATCH = 200


async def delete(session_id: UUID, actor: Any, reason: str) -> None:
    """Force-cancel what is active, delete the rows, then the checkpoints. Raises NotFound.

    Where it breaks off after the rows, a sweep deletes the checkpoints.
    """
    async with process_checkpoints() as checkpoints:
        await _delete_session(session_id, actor, reason, checkpoints)


async def delete_user(user_id: Any, actor: Any, reason: str) -> None:
    """Deactivate an account, delete each of its sessions, then the account itself. Raises NotFound.

    Each session is a transaction of its own. So an account of any size blocks nobody, and an interrupted
    deletion can be repeated.
    """
    await in_thread(_deactivate, user_id)
    sessions = 0
    async with process_checkpoints() as checkpoints:
        while not await in_thread(_delete_account, user_id, actor, reason, sessions):
            for session_id in await in_thread(_sessions_of, user_id):
                with suppress(NotFound):  # its owner was faster
                    await _delete_session(session_id, actor, reason, checkpoints)
                    sessions += 1


class Retention:
    """Stands for the user in the audit entry of a deletion that ``prune_runs`` makes."""

    def get_username(self) -> str:
        return "prune_runs"


async def delete_unused(before: datetime) -> int:
    """Delete each session in which nothing is active and nothing has changed since then; how many.

    Each is a transaction of its own that checks again whether the session is unused. A pause as long as the
    deletion follows, so at most half of the time for writing is taken from the turns.
    """
    deleted = 0
    async with process_checkpoints() as checkpoints:
        while found := await in_thread(lambda: list(unused(before).values_list("id", flat=True)[:_BATCH])):
            for session_id in found:
                begun = time.monotonic()
                with suppress(NotFound):  # it was used or deleted meanwhile
                    await _delete_session(session_id, Retention(), "", checkpoints, unused_since=before)
                    deleted += 1
                await asyncio.sleep(time.monotonic() - begun)
    return deleted


def unused(since: datetime) -> QuerySet[Session]:
    """Sessions in which nothing is active and nothing has changed since then, oldest first."""
    active = Run.objects.filter(session=OuterRef("pk"), status__in=ACTIVE)
    return Session.objects.filter(~Exists(active), updated_at__lt=since).order_by("updated_at", "id")


async def _delete_session(
    session_id: UUID,
    actor: Any,
    reason: str,
    checkpoints: Checkpoints,
    *,
    unused_since: datetime | None = None,
) -> None:
    await in_thread(_delete_rows, session_id, actor, reason, unused_since)
    if this_process.engine is not None:
        await this_process.engine.forget_session(session_id)
    await orphans.clear(session_id, checkpoints)


def _delete_rows(session_id: UUID, actor: Any, reason: str, unused_since: datetime | None) -> None:
    with locks.locked_session(session_id) as session:
        if unused_since is not None and not unused(unused_since).filter(id=session_id).exists():
            raise NotFound
        for run in Run.objects.filter(session=session, status__in=ACTIVE).order_by("queue_place"):
            cancel_requests.force_cancel(
                run.id, source=CancelSource.SYSTEM, reason="The session was deleted.", requested_by=actor
            )
        runs = list(Run.objects.filter(session=session).only("finished_at", "status", *_SUMMED))
        _keep_totals(session.agent, runs)
        AuditEntry.objects.create(
            actor=actor.get_username(),
            action="delete_session",
            target=str(session.id),
            reason=reason,
            details={"owner": session.owner.get_username(), "agent": session.agent, "runs": len(runs)},
        )
        notices.session_deleted(session.id, session.owner_id)
        orphans.note(session.id)
        session.delete()


def _keep_totals(agent: str, runs: Sequence[Run]) -> None:
    totals: dict[tuple[Any, str], Counter[str]] = defaultdict(Counter)
    for run in runs:
        if run.finished_at is None:
            continue
        total = totals[timezone.localdate(run.finished_at), run.status]
        total["runs"] += 1
        total.update({name: getattr(run, name) or 0 for name in _SUMMED})
    for (day, status), total in sorted(totals.items()):  # as every deletion locks them
        row, _ = DailyTotal.objects.get_or_create(day=day, agent=agent, status=status)
        DailyTotal.objects.filter(pk=row.pk).update(
            **{name: F(name) + number for name, number in total.items()}
        )


def _deactivate(user_id: Any) -> None:
    """Deactivate the account: it starts nothing any more, and its connections end."""
    if not get_user_model().objects.filter(pk=user_id).update(is_active=False):
        raise NotFound


def _sessions_of(user_id: Any) -> list[UUID]:
    return list(Session.objects.filter(owner=user_id).values_list("id", flat=True)[:_BATCH])


def _delete_account(user_id: Any, actor: Any, reason: str, sessions: int) -> bool:
    """Delete the account's row once it owns no session any more; whether it is gone."""
    with transaction.atomic():
        # The lock keeps new sessions out: their foreign key would have to share it.
        user = get_user_model().objects.select_for_update().filter(pk=user_id).first()
        if user is None:
            raise NotFound
        if Session.objects.filter(owner=user).exists():
            return False
        AuditEntry.objects.create(
            actor=actor.get_username(),
            action="delete_user",
            target=user.get_username(),
            reason=reason,
            details={"id": user.pk, "sessions": sessions},
        )
        user.delete()
        return True
