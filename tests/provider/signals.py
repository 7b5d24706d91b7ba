"""Waiting without sleeping: a value that threads and event loops can wait for alike."""

import asyncio
import threading
import time
from collections.abc import Callable


class Board:
    """Something that changes and wakes everybody who waits for it, in any thread and on any event loop."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wakers: dict[object, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}

    def changed(self) -> None:
        """Let every waiter look again."""
        with self._condition:
            self._condition.notify_all()
            wakers = list(self._wakers.values())
        for loop, event in wakers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def wait_for(self, predicate: Callable[[], bool], timeout: float = 10) -> None:
        """Block this thread until ``predicate()`` holds; TimeoutError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with self._condition:
            if not self._condition.wait_for(predicate, max(0, deadline - time.monotonic())):
                raise TimeoutError(f"nothing of the kind within {timeout} s")

    async def until(self, predicate: Callable[[], bool], timeout: float | None = 10) -> None:
        """Await ``predicate()``; TimeoutError after ``timeout`` seconds (None: never)."""
        event, key = asyncio.Event(), object()
        with self._condition:
            self._wakers[key] = (asyncio.get_running_loop(), event)
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    await event.wait()
                    event.clear()
        finally:
            with self._condition:
                del self._wakers[key]


class Gate:
    """A point of a script where the model stops until the test opens the gate."""

    def __init__(self) -> None:
        self._board = Board()
        self.arrivals = 0  # how often a model came here
        self.opened = False

    def arrive(self) -> None:
        self.arrivals += 1
        self._board.changed()

    def open(self) -> None:
        """Let whoever waits here, and whoever comes later, go on."""
        self.opened = True
        self._board.changed()

    def wait_reached(self, times: int = 1, timeout: float = 10) -> None:
        """Block until a model has come here ``times`` times."""
        self._board.wait_for(lambda: self.arrivals >= times, timeout)

    async def reached(self, times: int = 1, timeout: float = 10) -> None:
        """Await that a model has come here ``times`` times."""
        await self._board.until(lambda: self.arrivals >= times, timeout)

    def wait_opened(self, timeout: float = 60) -> None:
        self._board.wait_for(lambda: self.opened, timeout)

    async def passed(self) -> None:
        """Await the opening; a script's model waits here."""
        await self._board.until(lambda: self.opened, None)
