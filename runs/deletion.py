"""Deleting a session: end it, take its log and checkpoints, keep the books."""

from collections import Counter, defaultdict
from typing import Any
from uuid import UUID

from django.db.models import F
from django.utils import timezone

from runs import lifecycle, notices
from runs.database import in_thread
from runs.models import AuditEntry, DailyTotal, Run
from runs.states import ACTIVE, CancelSource
from runs.worker import Supervisor, process_checkpoints

_SUMMED = ("message_count", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "duration_ms")


async def delete(session_id: UUID, actor: Any, reason: str) -> None:
    """Force-cancel what is active, delete the rows, then the checkpoints. Raises NotFound."""
    await in_thread(_delete_rows, session_id, actor, reason)
    if Supervisor.current is not None:
        await Supervisor.current.forget_session(session_id)
    async with process_checkpoints() as checkpoints:
        await checkpoints.delete([session_id])


def _delete_rows(session_id: UUID, actor: Any, reason: str) -> None:
    with lifecycle.locked_session(session_id) as session:
        for run in Run.objects.filter(session=session, status__in=ACTIVE).order_by("line"):
            lifecycle.force_cancel(
                run.id, source=CancelSource.SYSTEM, reason="The session was deleted.", requested_by=actor
            )
        runs = list(Run.objects.filter(session=session))
        _keep_totals(session.agent, runs)
        AuditEntry.objects.create(
            actor=actor.get_username(),
            action="delete_session",
            target=str(session.id),
            reason=reason,
            details={"owner": session.owner.get_username(), "agent": session.agent, "runs": len(runs)},
        )
        notices.session_deleted(session.id, session.owner_id)
        session.delete()


def _keep_totals(agent: str, runs: list[Run]) -> None:
    totals: dict[tuple[Any, str], Counter[str]] = defaultdict(Counter)
    for run in runs:
        if run.finished_at is None:
            continue
        total = totals[timezone.localdate(run.finished_at), run.status]
        total["runs"] += 1
        total.update({name: getattr(run, name) or 0 for name in _SUMMED})
    for (day, status), total in totals.items():
        row, _ = DailyTotal.objects.get_or_create(day=day, agent=agent, status=status)
        DailyTotal.objects.filter(pk=row.pk).update(
            **{name: F(name) + number for name, number in total.items()}
        )
