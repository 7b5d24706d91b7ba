"""What of one run is alive in this process: threads, tasks, processes; and what was given up on.

A run is not reported as stopped while any of it still works. Functions in threads are entered here by
``executor``, tasks by ``tracking``, process groups by ``CancelToken.start_process``. Each is removed when it
ends, so nobody has to poll.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from runs.stopping.process_group import ProcessGroup

if TYPE_CHECKING:
    from runs.stopping.executor import SubmittedFunction

logger = logging.getLogger(__name__)


Activity: TypeAlias = "SubmittedFunction[Any] | asyncio.Task[Any] | ProcessGroup"
Waiter: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Event]


@dataclass(frozen=True, slots=True)
class ActivityCount:
    """How much of a run lives. False if nothing does."""

    threads: int = 0  # functions in threads, those queued for one included
    tasks: int = 0  # asyncio tasks
    processes: int = 0  # process groups in which at least one process lives

    def __bool__(self) -> bool:
        return bool(self.threads or self.tasks or self.processes)

    @property
    def independent(self) -> int:
        """How much works by itself. A task and those that wait for it cannot be told apart: they are one."""
        return self.threads + self.processes + bool(self.tasks)


class RunActivity:
    """All that is alive of one run. Every method may be called from any thread unless it says otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[Activity] = set()
        self._stragglers: set[Activity] = set()
        self._closed_to_threads = False
        self.given_up = False  # what is alive is a straggler
        self._last_signal: signal.Signals | None = None
        self._waiting: set[Waiter] = set()
        self._on_end: Callable[[], None] | None = None
        self._begun = count()
        self._generators: WeakValueDictionary[int, AsyncGenerator[Any, Any]] = WeakValueDictionary()

    def alive(self) -> ActivityCount:
        """What lives and was not given up on."""
        with self._lock:
            return _count(self._alive)

    def stragglers(self) -> ActivityCount:
        """What was given up on and still lives."""
        with self._lock:
            return _count(self._stragglers)

    async def wait_until_idle(self, timeout: float) -> bool:
        """Wait until nothing lives but stragglers; False if ``timeout`` seconds were not enough.

        To be awaited outside the run: a task that is itself entered here would wait for its own end.
        """
        changed = asyncio.Event()
        waiter = (asyncio.get_running_loop(), changed)
        try:
            async with asyncio.timeout(timeout):
                while self._wait(waiter):
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiting.discard(waiter)
        return True

    def close_to_threads(self) -> None:
        """Start no function in a thread any more: cancel what is queued, refuse what comes later."""
        with self._lock:
            self._closed_to_threads = True
            living = list(self._alive)
        for item in living:
            if not isinstance(item, asyncio.Task | ProcessGroup):
                item.cancel()

    def cancel_tasks(self) -> int:
        """Cancel the tasks that live; how many there were. To be called on their event loop."""
        with self._lock:
            tasks = [item for item in self._alive if isinstance(item, asyncio.Task)]
        for task in tasks:
            task.cancel()
        return len(tasks)

    async def close_generators(self, timeout: float) -> None:
        """Close the asynchronous generators that were left half-way, within ``timeout`` seconds.

        A generator whose reader was cancelled while it handled an item is closed by nobody else. As long as
        anything refers to it, it keeps the model's stream open.
        """
        left = [
            generator for _, generator in sorted(self._generators.items(), reverse=True)
        ]  # inner ones first
        # In a task of its own, since their cleaning up may swallow a cancel.
        closing = asyncio.create_task(_close_all(left), name="closing streams")
        await asyncio.wait({closing}, timeout=timeout)
        if not closing.done():
            closing.cancel()
            logger.warning("What a run was streaming did not close within %g s.", timeout)

    def terminate_processes(self) -> None:
        """Ask every process group to end (SIGTERM), one that is just being started included."""
        self._signal(signal.SIGTERM)

    def kill_processes(self) -> None:
        """End every process group (SIGKILL), one that is just being started included."""
        self._signal(signal.SIGKILL)

    def give_up(
        self,
        on_end: Callable[[], None] | None = None,
        on_result: Callable[[str], None] | None = None,
    ) -> ActivityCount:
        """Count what lives as stragglers from now on, and give the places of its threads to others.

        What a straggler starts is a straggler, too, even if all others have ended. ``on_end`` is called
        whenever a straggler has ended, and at once if there is none. ``on_result`` is called with the
        tool call id of each thread that comes to a result. Both are called in the thread where it happens.
        Returns what was given up on.
        """
        self.close_to_threads()
        with self._lock:
            self.given_up = True
            self._on_end = on_end
            given_up = list(self._alive)
            self._stragglers |= self._alive
            self._alive.clear()
            to_tell = self._to_tell(straggler=not self._stragglers)
        for item in given_up:
            if not isinstance(item, asyncio.Task | ProcessGroup):
                item.give_up()
                if on_result is not None and item.tool_call is not None:
                    item.add_done_callback(partial(_tell_result, on_result, item.tool_call))
        _tell(*to_tell)
        return _count(given_up)

    # Entering and leaving

    def add_thread(self, thread: "SubmittedFunction[Any]") -> bool:
        """Enter a function for a thread; False if the run starts no more of them."""
        with self._lock:
            if self._closed_to_threads:
                return False
            self._alive.add(thread)
            return True

    def remove_thread(self, thread: "SubmittedFunction[Any]") -> None:
        """Remove a function that has ended or was taken back. Doing it twice is harmless."""
        self._remove(thread)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Enter a task until it is done."""
        with self._lock:
            (self._stragglers if self.given_up else self._alive).add(task)
        task.add_done_callback(self._remove)

    def add_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Enter an asynchronous generator as long as it lives. To be called on its event loop."""
        self._generators[next(self._begun)] = generator

    def add_process(self, group: ProcessGroup) -> None:
        """Enter a process group until its last process is gone."""
        with self._lock:
            (self._stragglers if self.given_up else self._alive).add(group)
        if self._last_signal is not None:
            group.signal(self._last_signal)
        group.when_gone(self._remove)

    def _remove(self, item: Activity) -> None:
        with self._lock:
            was_straggler = item in self._stragglers
            self._alive.discard(item)
            self._stragglers.discard(item)
            if not self._waiting and self._on_end is None:
                return  # as nearly always: LangGraph has a task for each token
            to_tell = self._to_tell(straggler=was_straggler)
        _tell(*to_tell)

    def _wait(self, waiter: Waiter) -> bool:
        """Whether there is something to wait for; if so, ``waiter`` will be told."""
        with self._lock:
            if self._alive:
                self._waiting.add(waiter)
            return bool(self._alive)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            self._last_signal = number
            groups = [item for item in (*self._alive, *self._stragglers) if isinstance(item, ProcessGroup)]
        for group in groups:
            group.signal(number)

    def _to_tell(self, *, straggler: bool) -> tuple[set[Waiter], Callable[[], None] | None]:
        """Who is to be told that something has left, a straggler or not: for ``_tell``.

        To be called with the lock held. ``_tell`` is called without it.
        """
        waiting: set[Waiter] = set()
        if not self._alive:
            waiting, self._waiting = self._waiting, waiting
        return waiting, self._on_end if straggler else None


async def _close_all(generators: "list[AsyncGenerator[Any, Any]]") -> None:
    for generator in generators:
        try:
            await generator.aclose()
        except Exception as error:  # noqa: BLE001 (their cleaning up is anybody's code)
            logger.debug("%r was not closed in good order: %s", generator, error)


def _tell_result(on_result: Callable[[str], None], tool_call: str, future: Any) -> None:
    if not future.cancelled() and future.exception() is None:
        on_result(tool_call)


def _count(items: Collection[Activity]) -> ActivityCount:
    kinds = Counter(
        "tasks"
        if isinstance(item, asyncio.Task)
        else "processes"
        if isinstance(item, ProcessGroup)
        else "threads"
        for item in items
    )
    return ActivityCount(**kinds)


def _tell(waiting: set[Waiter], on_end: Callable[[], None] | None) -> None:
    for loop, changed in waiting:
        with contextlib.suppress(RuntimeError):  # that loop has closed; nobody waits in it
            loop.call_soon_threadsafe(changed.set)
    if on_end is not None:
        try:
            on_end()
        except Exception:
            # This is the thread in which the straggler ended. Nobody there could handle it.
            logger.exception("What was to follow the end of a straggler failed.")
