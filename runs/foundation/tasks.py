"""Ending tasks of the engine's own."""

import asyncio
from collections.abc import Iterable
from typing import Any

# Seconds between one cancel and the next.
_PAUSE = 1.0


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these, again and again, until all have ended; whatever they raise is dropped.

    One cancel may be lost: before Python 3.12 ``asyncio.wait_for`` swallows one that comes together with what
    it waits for, and libraries for databases and queues use it. Then their task just goes on.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=_PAUSE)
        for task in ended:
            if not task.cancelled():
                task.exception()  # which counts as looked at
