"""Operations that are never cut half-way, and gates that close behind them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from runs.errors import Fenced

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Gate:
    """Lets operations begin until it is closed, and knows which of them have not ended."""

    def __init__(self) -> None:
        self.closed = False
        self._inside: set[asyncio.Task[Any]] = set()

    def enter(self, task: asyncio.Task[Any]) -> None:
        self._inside.add(task)
        task.add_done_callback(self._inside.discard)

    async def close(self) -> None:
        """Let nothing begin any more, and await what has begun. Closing twice is harmless."""
        self.closed = True
        while self._inside:
            await asyncio.wait(self._inside)


async def whole(operation: Callable[[], Coroutine[Any, Any, T]], *gates: Gate) -> T:
    """Do ``operation`` to its end, even if the caller is cancelled meanwhile; then the cancel goes on.

    Raises Fenced when one of the gates is closed. The operation runs in a task of its own and outside of
    the caller's context, so that it counts for no run: it is the engine's work, not the graph's.
    """
    if any(gate.closed for gate in gates):
        raise Fenced
    task = asyncio.get_running_loop().create_task(operation(), name="checkpoint", context=Context())
    for gate in gates:
        gate.enter(task)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))  # which, unlike awaiting the task, does not pass the cancel on to it
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) and not isinstance(failure, Fenced):
        # The caller will hear of its cancel only, so this is the one place to tell.
        logger.error("A checkpoint operation failed while its run was being cancelled.", exc_info=failure)
    raise cancelled
