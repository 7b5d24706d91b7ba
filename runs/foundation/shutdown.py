"""The shutdown of a process: begun by a signal, in good order if possible, forced at its deadline."""

import asyncio
import logging
import os
import signal
import threading
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

FAILED = 1  # the exit code when the engine could not start or leave
FORCED = 130  # the exit code after a second SIGINT


class Shutdown:
    """The shutdown of this process, on its event loop.

    The first SIGTERM or SIGINT sets ``requested`` and a deadline in ``seconds``. At the deadline, or at a
    second SIGINT, the process exits, even if a thread or the loop hangs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.requested = asyncio.Event()
        self.exit_code = 0
        self._loop = loop
        self._seconds = seconds
        self._deadline = 0.0  # on the loop's clock; 0 until it is set

    def handle_signals(self) -> None:
        """Shut down on SIGTERM and SIGINT. Call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    @property
    def deadline(self) -> float:
        """When the process exits at the latest, on the loop's clock."""
        return self._deadline or self._loop.time() + self._seconds

    @property
    def seconds_left(self) -> float:
        """Seconds that the engine may take to leave. What follows needs a moment, too."""
        return max(0.0, self.deadline - self._loop.time() - min(1.0, self._seconds / 5))

    def exit_at_once(self, error: BaseException) -> NoReturn:
        """Exit with FAILED, whatever hangs. The error, which has ended the event loop, is logged."""
        logger.critical("The event loop has ended.", exc_info=error)
        os._exit(FAILED)

    def start_deadline(self) -> None:
        """Start the time until the deadline, unless it was started before."""
        if not self._deadline:
            self._deadline = self._loop.time() + self._seconds
            threading.Thread(target=self._force_exit, name="deadline", daemon=True).start()

    async def wait(self, broken: asyncio.Event) -> bool:
        """Wait for a signal or for ``broken``; whether it was the latter."""
        waiting = [
            asyncio.create_task(self.requested.wait(), name="shutdown requested"),
            asyncio.create_task(broken.wait(), name="engine broken"),
        ]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return broken.is_set()

    def _on_signal(self, number: int, frame: Any) -> None:
        # Not a handler of the loop: this one works even when something blocks the loop.
        if not self.requested.is_set():
            self.start_deadline()
            self._loop.call_soon_threadsafe(self.requested.set)
        elif number == signal.SIGINT:
            os._exit(FORCED)

    def _force_exit(self) -> None:
        threading.Event().wait(self._seconds)
        # Logged in another thread, since what hangs may hold the lock of the log.
        message = f"Left after {self._seconds:g} s with something still at work."
        logging_thread = threading.Thread(target=logger.warning, args=(message,), daemon=True)
        logging_thread.start()
        logging_thread.join(0.5)
        os._exit(self.exit_code)
