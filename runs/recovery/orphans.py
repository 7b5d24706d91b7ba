"""Checkpoints of a session whose rows are deleted.

They are deleted in a transaction of their own, on SQLite in another file. The transaction that deletes the
rows notes that the checkpoints have to follow. If the process dies in between, a sweep deletes them.
"""

import logging
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.lifecycle import liveness
from runs.memory.checkpoints import Checkpoints
from runs.models import Leftover

logger = logging.getLogger(__name__)

# How many sessions one sweep takes.
_TAKEN = 100


def note(session_id: UUID) -> None:
    """Note that the checkpoints have to follow the session's rows, which this transaction deletes."""
    Leftover.objects.create(session_id=session_id, tried_at=Now())


async def clear(session_id: UUID, checkpoints: Checkpoints) -> None:
    """Delete the checkpoints of a session whose rows are gone. Doing it twice changes nothing."""
    await checkpoints.delete([session_id])
    await in_thread(Leftover.objects.filter(session_id=session_id).delete)


async def clear_overdue(checkpoints: Checkpoints) -> int:
    """Delete the checkpoints of deletions that were broken off; of how many sessions."""
    cleared = 0
    for session_id in await in_thread(_overdue_sessions):
        if not await in_thread(_take, session_id):
            continue  # another sweep is at it
        try:
            await clear(session_id, checkpoints)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("The checkpoints of deleted sessions are left to a later sweep: %s", error)
            break
        except Exception:  # a faulty one must not keep the others
            logger.exception("The checkpoints of deleted session %s are left to a later sweep.", session_id)
        else:
            cleared += 1
    return cleared


def overdue() -> QuerySet[Leftover]:
    """Notes whose deletion nobody works on any more, the longest untried first."""
    return Leftover.objects.filter(tried_at__lt=Now() - liveness.patience()).order_by("tried_at")


def _overdue_sessions() -> list[UUID]:
    return list(overdue().values_list("session_id", flat=True)[:_TAKEN])


def _take(session_id: UUID) -> bool:
    return bool(overdue().filter(session_id=session_id).update(tried_at=Now()))
