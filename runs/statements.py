"""The statements of every turn, batch, poll and snapshot, each compiled once.

What runs less often is a plain query beside its only use.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery, Sum

from runs.foundation.sql import Statement
from runs.models import UNSETTLED, Cancellation, Run, Seed, Session, ToolCall, Worker
from runs.states import ACTIVE, OCCUPYING, TERMINAL, RunStatus, ToolStatus

_of_session = Run.objects.filter(session=OuterRef("pk"))

# Annotations of a session from which its status is derived; one statement reads them with the session.
SESSION_STATUS = {
    "pending": Exists(Cancellation.objects.filter(UNSETTLED, session=OuterRef("pk"))),
    "occupied_by": Subquery(_of_session.filter(status__in=OCCUPYING).values("status")[:1]),
    "has_queue": Exists(_of_session.filter(status=RunStatus.QUEUED)),
    "is_interrupted": Exists(_of_session.undecided()),
}

# Sums over the runs of a session.
_SUMMED = ("message_count", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "duration_ms")
_IS_ESTIMATED = Q(tokens_estimated=True) | Q(open_input_tokens__gt=0) | Q(open_output_tokens__gt=0)
SESSION_SUMS = {
    "runs": Count("id"),
    "estimated": Count("id", filter=_IS_ESTIMATED),
    "open_input": Sum("open_input_tokens"),
    "open_output": Sum("open_output_tokens"),
    **{f"total_{name}": Sum(name) for name in _SUMMED},
}


# Admission


@Statement
def own_session(session_id: Any, owner: Any) -> QuerySet[Session]:
    return Session.objects.filter(id=session_id, owner=owner)


@Statement
def run_with_key(session_id: Any, idempotency_key: Any) -> QuerySet[Run]:
    return Run.objects.filter(session=session_id, idempotency_key=idempotency_key)


@Statement
def open_runs(session_id: Any) -> QuerySet[Run]:
    return Run.objects.open().filter(session=session_id)


@Statement
def stragglers_of(user: Any) -> QuerySet[Run, tuple[int]]:
    """How many each of the user's ended runs has left at work, of those that have."""
    return Run.objects.filter(requested_by=user, stragglers__gt=0).values_list("stragglers")


# Transitions


@Statement
def lock_session(session_id: Any) -> QuerySet[Session]:
    return Session.objects.select_for_update(no_key=True).filter(id=session_id)


@Statement
def lock_session_of(run_id: Any) -> QuerySet[Session]:
    return Session.objects.select_for_update(no_key=True, of=("self",)).filter(runs=run_id)


@Statement
def lock_run(run_id: Any) -> QuerySet[Run]:
    return Run.objects.select_for_update().filter(id=run_id)


@Statement
def worker(worker_id: Any) -> QuerySet[Worker]:
    return Worker.objects.filter(id=worker_id)


@Statement
def claimable_runs(session_id: Any) -> QuerySet[Run, tuple[int, UUID]]:
    """(line, id) of each, in no order."""
    return Run.objects.claimable().filter(session=session_id).values_list("queue_place", "id")


@Statement
def a_queued_run(session_id: Any) -> QuerySet[Run, tuple[UUID]]:
    return Run.objects.filter(session=session_id, status=RunStatus.QUEUED).values_list("id")[:1]


@Statement
def open_calls(run_id: Any) -> QuerySet[ToolCall]:
    return ToolCall.objects.filter(run=run_id, status=ToolStatus.RUNNING).order_by("id")


# Executions


@Statement
def run(run_id: Any) -> QuerySet[Run]:
    return Run.objects.filter(id=run_id)


@Statement
def seed(session_id: Any) -> QuerySet[Seed]:
    return Seed.objects.filter(session=session_id)


@Statement
def unrepaired_runs(session_id: Any, before: Any) -> QuerySet[Run]:
    """Ended runs at positions before this one whose history is not in order yet."""
    earlier = Run.objects.filter(session=session_id, position__lt=before)
    return earlier.filter(status__in=TERMINAL, repaired=False).order_by("position")


@Statement
def lock_runs_of_batch(run_ids: Any) -> QuerySet[Run, tuple[UUID, str, int, int, int]]:
    """(id, status, claim, last_seq, batches) of each."""
    locked = Run.objects.select_for_update(no_key=True).filter(id__in=run_ids).order_by("id")
    return locked.values_list("id", "status", "claim", "last_seq", "batches")


# Polls and snapshots


@Statement
def ends_of_sessions(session_ids: Any) -> QuerySet[Session, tuple[UUID, datetime, int, int | None]]:
    """(id, updated_at, position of the latest run, its last seq) of each."""
    latest = _of_session.filter(position=OuterRef("last_position"))
    found = Session.objects.filter(id__in=session_ids).annotate(
        latest_seq=Subquery(latest.values("last_seq")[:1])
    )
    return found.values_list("id", "updated_at", "last_position", "latest_seq")


@Statement
def sessions_with_status(session_ids: Any) -> QuerySet[Session]:
    return Session.objects.filter(id__in=session_ids).annotate(**SESSION_STATUS)


@Statement
def session_updates(session_ids: Any) -> QuerySet[Session, tuple[UUID, datetime]]:
    """(id, updated_at) of each."""
    return Session.objects.filter(id__in=session_ids).values_list("id", "updated_at")


@Statement
def active_runs(session_ids: Any) -> QuerySet[Run]:
    return Run.objects.filter(session__id__in=session_ids, status__in=ACTIVE).order_by("queue_place")


@Statement
def sums_of_sessions(session_ids: Any) -> QuerySet[Run, tuple[Any, ...]]:
    """(session, *SESSION_SUMS) of each that has runs."""
    grouped = Run.objects.filter(session__id__in=session_ids).values("session").annotate(**SESSION_SUMS)
    return grouped.values_list("session", *SESSION_SUMS)
