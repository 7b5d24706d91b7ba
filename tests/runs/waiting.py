"""Waiting for what the engine does, with a deadline and a clear failure."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from runs.foundation.database import in_thread
from runs.models import Run, RunEvent
from runs.states import TERMINAL

if TYPE_CHECKING:
    from runs.worker.supervisor import Supervisor

T = TypeVar("T")

# A machine that runs the gate is busy with other things as well.
PATIENCE = 3 if os.environ.get("CI") else 1


async def until(predicate: Callable[[], T | None], seconds: float = 10.0, what: str = "it") -> T:
    """Look, in a database thread, until ``predicate`` gives something true; what it gave."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        found = await in_thread(predicate)
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds * PATIENCE:g} s")
        await asyncio.sleep(0.01)


async def terminal(run_id: UUID | str, seconds: float = 10.0) -> Run:
    """The run, once it has ended."""
    found = Run.objects.filter(id=run_id, status__in=TERMINAL)
    return await until(found.first, seconds, f"the end of run {run_id}")


async def status(run_id: UUID | str, wanted: str, seconds: float = 10.0) -> Run:
    """The run, once it is in this status."""
    return await until(Run.objects.filter(id=run_id, status=wanted).first, seconds, f"run {run_id} {wanted}")


async def event(run_id: UUID | str, type: str, seconds: float = 10.0) -> RunEvent:
    """The first event of this type, once it is committed."""
    found = RunEvent.objects.filter(run__id=run_id, type=type).order_by("seq")
    return await until(found.first, seconds, f"{type} of run {run_id}")


async def at_rest(supervisor: "Supervisor") -> None:
    """Wait until no execution is at work and all that follows one is done. A row is ended a little before."""
    await asyncio.gather(*supervisor._tasks)
    await asyncio.gather(*supervisor._after)


async def log_of(run_id: UUID | str) -> list[RunEvent]:
    """All events of a run."""
    return await in_thread(lambda: list(RunEvent.objects.filter(run__id=run_id).order_by("seq")))
