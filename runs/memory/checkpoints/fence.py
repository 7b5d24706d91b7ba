"""Checkpoint operations that no cancel cuts short, and the fence behind which none begins."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from runs.errors import Fenced

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Fence:
    """Lets operations begin until it is closed, and knows which of them have not ended."""

    def __init__(self) -> None:
        self.closed = False
        self._inside: set[asyncio.Task[Any]] = set()

    def enter(self, task: asyncio.Task[Any]) -> None:
        self._inside.add(task)
        task.add_done_callback(self._inside.discard)

    async def close(self) -> None:
        """Let no operation begin any more, and await those that have begun. May be called again."""
        self.closed = True
        while self._inside:
            await asyncio.wait(self._inside)


async def run_shielded(operation: Callable[[], Coroutine[Any, Any, T]], *fences: Fence) -> T:
    """Run ``operation`` to its end and return its result. A cancel of the caller is raised after that end.

    Raises Fenced if one of the fences is closed. The operation runs in its own task and outside the caller's
    context: it is the engine's work, so it must not be counted as work of the run.
    """
    if any(fence.closed for fence in fences):
        raise Fenced
    task = asyncio.get_running_loop().create_task(operation(), name="checkpoint", context=Context())
    for fence in fences:
        fence.enter(task)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # unlike awaiting the task, this does not cancel it, too
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) and not isinstance(failure, Fenced):
        # The caller gets its cancel, not this error, so it is logged here.
        logger.error("A checkpoint operation failed while its run was being cancelled.", exc_info=failure)
    raise cancelled
