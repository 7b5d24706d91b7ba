"""The cancel token: how a cancel reaches code in threads, callbacks and child processes of a run.

A tool that can block gets it by ``token = cancel_token()``.
"""

import asyncio
import logging
import subprocess
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from runs.stopping.process_group import ProcessGroup
from runs.stopping.registry import RunActivity

logger = logging.getLogger(__name__)


class RunCancelled(asyncio.CancelledError):
    """The run was cancelled.

    It is a CancelledError, in threads too. So ``except Exception`` in a tool does not take it for a failure,
    and a task that awaits the thread ends as cancelled.
    """


class CancelToken:
    """Tells the code of one run that the run is cancelled, and knows what of the run is alive.

    Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self.activity = RunActivity()
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}

    @property
    def cancelled(self) -> bool:
        """Whether the run is cancelled. It stays so."""
        return self._cancelled.is_set()

    def raise_if_cancelled(self) -> None:
        """Raise RunCancelled if the run is cancelled."""
        if self._cancelled.is_set():
            raise RunCancelled("The run was cancelled.")

    def wait(self, seconds: float | None = None) -> bool:
        """Block this thread until the run is cancelled or ``seconds`` have passed (None: for ever).

        Returns whether the run is cancelled. Use it in threads in place of ``time.sleep``. On the event loop
        the task itself is cancelled.
        """
        return self._cancelled.wait(seconds)

    def on_cancel(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback`` once when the run is cancelled, or at once if it is cancelled already.

        Returns a function that removes the callback. The callback runs in the thread that cancels, usually
        the event loop's, so it must not block: close a connection, set a flag. What it raises is logged.
        """
        key = object()
        with self._lock:
            waits = not self._cancelled.is_set()
            if waits:
                self._callbacks[key] = callback
        if not waits:
            _call(callback)

        def remove() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return remove

    def start_process(self, args: Any, **popen_kwargs: Any) -> subprocess.Popen[Any]:
        """``subprocess.Popen(args, **popen_kwargs)`` in a process group of its own, which ends with the run.

        A cancel sends SIGTERM to the whole group, and SIGKILL when the grace time is over. Raises
        RunCancelled if the run is cancelled already, and whatever Popen raises.
        """
        self.raise_if_cancelled()
        group = ProcessGroup(args, **popen_kwargs)
        self.activity.add_process(group)
        return group.process

    def cancel(self) -> bool:
        """Cancel: no function of the run starts in a thread any more, waiting threads wake, callbacks run.

        Returns whether this call did it. A second call does nothing.
        """
        with self._lock:
            if self._cancelled.is_set():
                return False
            self._cancelled.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        self.activity.close_to_threads()
        for callback in callbacks:
            _call(callback)
        return True


# The token of the run in whose context we are; None outside of any run.
current: ContextVar[CancelToken | None] = ContextVar("current", default=None)

# The id of the tool call in whose context we are. A thread that outlives its run is known by it.
current_call: ContextVar[str | None] = ContextVar("current_call", default=None)


def cancel_token() -> CancelToken:
    """The token of the run this code belongs to; outside of any run, one that is never cancelled."""
    return current.get() or CancelToken()


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        # It is a tool's own, and the cancel has to reach all other callbacks.
        logger.exception("A callback for the cancel of a run failed.")
