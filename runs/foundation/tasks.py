"""Ending tasks of the engine's own."""

import asyncio
from collections.abc import Iterable
from typing import Any

# Seconds between one cancel and the next.
_PAUSE = 1.0


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks, repeatedly, until all have ended. What they raise is dropped.

    A task may swallow a cancel: before Python 3.12 ``asyncio.wait_for`` does so when the cancel comes with
    the result, and libraries for databases and queues use it.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=_PAUSE)
        for task in ended:
            if not task.cancelled():
                task.exception()  # marks it as retrieved
