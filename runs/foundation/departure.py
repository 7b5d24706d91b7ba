"""How a process leaves: told by a signal, in good order if it can, and gone at the latest at its deadline."""

import asyncio
import logging
import os
import signal
import threading
from typing import Any

logger = logging.getLogger(__name__)

FAILED = 1  # the exit code when the engine could not start or leave
FORCED = 130  # the exit code of somebody who was told twice


class Departure:
    """The one departure of this process, on its event loop.

    The first SIGTERM or SIGINT sets ``told`` and the deadline, ``seconds`` ahead. Whatever does not let go
    by then is left behind, a stuck thread or a stuck loop included; so it is at a second SIGINT.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.told = asyncio.Event()
        self.exit_code = 0
        self._loop = loop
        self._seconds = seconds
        self._deadline = 0.0  # on the loop's clock; set when there is one

    def heed_signals(self) -> None:
        """Leave on SIGTERM and SIGINT. To be called in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @property
    def until(self) -> float:
        """When to be gone, on the loop's clock."""
        return self._deadline or self._loop.time() + self._seconds

    @property
    def seconds_left(self) -> float:
        """How long the engine may take to leave: what comes after it needs a moment, too."""
        return max(0.0, self.until - self._loop.time() - min(1.0, self._seconds / 5))

    def set_deadline(self) -> None:
        """From now on the process has so many seconds, if it had no deadline before."""
        if not self._deadline:
            self._deadline = self._loop.time() + self._seconds
            threading.Thread(target=self._force_the_end, name="deadline", daemon=True).start()

    async def reason(self, broken: asyncio.Event) -> bool:
        """Wait to be told to leave, or for ``broken``; whether it was the latter."""
        waiting = [
            asyncio.create_task(self.told.wait(), name="told to leave"),
            asyncio.create_task(broken.wait(), name="engine broken"),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return broken.is_set()

    def _on_signal(self, number: int, frame: Any) -> None:
        # A plain handler, not one of the loop: it works even when something holds up the loop.
        if not self.told.is_set():
            self.set_deadline()
            self._loop.call_soon_threadsafe(self.told.set)
        elif number == signal.SIGINT:
            os._exit(FORCED)

    def _force_the_end(self) -> None:
        threading.Event().wait(self._seconds)
        # Said from a thread of its own, since whatever is stuck may be stuck with the log.
        words = f"Left after {self._seconds:g} s with something still at work."
        speaker = threading.Thread(target=logger.warning, args=(words,), daemon=True)
        speaker.start()
        speaker.join(0.5)
        os._exit(self.exit_code)
