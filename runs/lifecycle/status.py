"""The only writer of a run's status.

Each change is an update that is conditional on what is expected of the row, and looks at the count. Nothing
updated means that somebody else was first: a normal return, after which the caller changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from runs.log import events
from runs.log.events import Entry
from runs.models import Run
from runs.states import RunStatus


class Outcome(StrEnum):
    """What became of a change that an execution asked for."""

    DONE = "done"
    CANCEL_FIRST = "cancel_first"  # a cancel was accepted before; nothing changed, end the run cancelled
    FENCED = "fenced"  # the run is not the execution's any more; nothing changed


def change(run: Run, to: RunStatus, entries: Sequence[Entry], at: datetime, **expected: Any) -> bool:
    """Write a locked run with this status, and the events that tell of it; False if somebody was first.

    ``expected`` are values of the row, the status among them. What else was changed of the run is written
    with it.
    """
    if not write(run, to, entries, at, **expected):
        return False
    events.record(run, entries, at)
    return True


def write(run: Run, to: RunStatus, entries: Sequence[Entry], at: datetime, **expected: Any) -> bool:
    """As ``change``, but the caller records the events, which have been counted."""
    run.status = to
    events.count(run, entries, at)
    return run.write(**expected, **_no_cancel_before(to))


def _no_cancel_before(to: RunStatus) -> dict[str, Any]:
    """An accepted cancel wins: from then on the run can become nothing but cancelled."""
    return {} if to == RunStatus.CANCELLED else {"cancel_requested_at": None}


def of_claim(claim: int) -> dict[str, Any]:
    """What an execution expects of the run that it claimed under this number."""
    return {"status": RunStatus.RUNNING, "claim": claim}


def of_worker(worker_id: UUID | None) -> dict[str, Any]:
    """What is expected of a run that this worker has lost; None for a worker whose row is gone."""
    return {"status": RunStatus.RUNNING, "worker": worker_id}


def what_was_first(run_id: UUID, claim: int) -> Outcome:
    """Why a change was refused that an execution asked for."""
    is_still_its_own = Run.objects.filter(id=run_id, **of_claim(claim)).exists()
    return Outcome.CANCEL_FIRST if is_still_its_own else Outcome.FENCED
