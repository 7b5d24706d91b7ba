"""What tests of recovery do again and again."""

import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run, RunEvent
from runs.wire import contract
from tests.fakes import Hold, Round, numbered, say
from tests.runs.harness import Harness, open_harness
from tests.runs.waiting import terminal, until

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def opening(
    alice: "User", serve: Callable[..., None], tmp_path: Path, release: threading.Event | None, **policy: Any
) -> AbstractAsyncContextManager[Harness]:
    """A harness whose agent has a policy."""
    return open_harness(alice, serve, tmp_path / "marks", release=release, policy=policy)


async def cut_in_answer(harness: Harness, answer: str = "w1 w2 w3 w4 w5", name: str = "cut") -> str:
    """A turn whose answer has come this far and no further; its run."""
    count = len(answer.split())
    harness.script.add(Round(numbered(count), Hold(name), numbered(3)))
    run_id = await harness.start()
    await until(lambda: told(run_id) == answer, what="the partial answer")
    return run_id


def told(run_id: UUID | str) -> str:
    deltas = RunEvent.objects.filter(run__id=run_id, type="message.delta").order_by("seq")
    return "".join(data["text"] for data in deltas.values_list("data", flat=True))


async def interrupted(run_id: UUID | str) -> Run:
    found = await terminal(run_id)
    assert found.status == "interrupted", found.status
    return found


async def snapshot(harness: Harness) -> contract.Session:
    return await in_thread(operations.session_snapshot, harness.owner, harness.session)


async def resumed(harness: Harness, run_id: UUID | str) -> Run:
    """Resume the run; the new one, once it has ended."""
    return await terminal((await in_thread(operations.resume, harness.owner, run_id))["id"])


async def goes_on(harness: Harness, run_id: UUID | str, words: str = "Here it is.") -> None:
    """The run is resumed, and completes with these words."""
    harness.script.clear()
    harness.script.add(say(words))
    ended = await resumed(harness, run_id)
    assert ended.status == "completed", ended.error_message


async def gone_on_with(run_id: UUID | str) -> Run:
    """The run that resumes this one without anybody asking, once it is admitted."""
    return await until(Run.objects.filter(resumes__id=run_id).first, what="an automatic resume")
