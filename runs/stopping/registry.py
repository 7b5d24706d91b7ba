"""What of one run is alive in this process: threads, tasks, processes; and what was given up on.

A run is not reported as stopped while any of it still works. What starts is entered here:
functions in threads by ``executor``, tasks by ``tracking``, process groups by ``start_process`` of the token.
It is removed when it ends, so nobody has to poll.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

from runs.stopping.process_group import ProcessGroup

logger = logging.getLogger(__name__)


class ThreadWork(Protocol):
    """A function handed to an executor, from its submission to its end."""

    def cancel(self) -> bool:
        """Take it back if it has not started; whether it could be."""

    tool_call: str | None  # the tool call that it works for, if that is known

    def give_up(self) -> None:
        """Stop counting it against the threads of its executor."""

    def add_done_callback(self, callback: "Callable[[Any], None]") -> None:
        """Call ``callback`` with it, as the future of its result, once it has ended."""


@dataclass(frozen=True, slots=True)
class Alive:
    """How much of a run lives."""

    threads: int = 0  # functions in threads, those queued for one included
    tasks: int = 0  # asyncio tasks
    processes: int = 0  # process groups in which at least one process lives

    def __bool__(self) -> bool:
        return self.total > 0

    @property
    def total(self) -> int:
        return self.threads + self.tasks + self.processes


class Work:
    """The registry of one run. Every method may be called from any thread unless it says otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[ThreadWork | asyncio.Task[Any] | ProcessGroup] = set()
        self._stragglers: set[ThreadWork | asyncio.Task[Any] | ProcessGroup] = set()
        self._closed_to_threads = False
        self._given_up = False
        self._last_signal: signal.Signals | None = None
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._on_idle: Callable[[], None] | None = None
        self._begun = count()
        self._generators: WeakValueDictionary[int, AsyncGenerator[Any, Any]] = WeakValueDictionary()

    def alive(self) -> Alive:
        """What lives and was not given up on."""
        with self._lock:
            return _count(self._alive)

    def stragglers(self) -> Alive:
        """What was given up on and still lives."""
        with self._lock:
            return _count(self._stragglers)

    async def ended(self, timeout: float) -> bool:
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
        """Start no function in a thread any more: what is queued is taken back, what comes later refused."""
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
        """Close what asynchronous generators were left half-way, within ``timeout`` seconds.

        One whose reader was cancelled while it handled an item is closed by nobody, and lives on as long as
        anything refers to it; with it lives the stream of the model.
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
        on_idle: Callable[[], None] | None = None,
        on_result: Callable[[str], None] | None = None,
    ) -> Alive:
        """Count what lives as stragglers from now on, and give the places of its threads to others.

        What a straggler starts is a straggler, too, even if all others have ended. ``on_idle`` is called
        whenever the last one has ended, wherever that happens (at once if there is none); ``on_result`` with
        the tool call of each thread that does come to a result. Returns what was given up on.
        """
        self.close_to_threads()
        with self._lock:
            self._given_up = True
            self._on_idle = on_idle
            given_up = list(self._alive)
            self._stragglers |= self._alive
            self._alive.clear()
            tell = self._changed(stragglers=True)
        for item in given_up:
            if not isinstance(item, asyncio.Task | ProcessGroup):
                item.give_up()
                if on_result is not None and item.tool_call is not None:
                    item.add_done_callback(_telling(on_result, item.tool_call))
        tell()
        return _count(given_up)

    # Entering and leaving

    def add_thread(self, thread: ThreadWork) -> bool:
        """Enter a function for a thread; False if the run starts no more of them."""
        with self._lock:
            if self._closed_to_threads:
                return False
            self._alive.add(thread)
            return True

    def remove_thread(self, thread: ThreadWork) -> None:
        """Strike a function out that has ended or was taken back; harmless when done twice."""
        self._remove(thread)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Enter a task until it is done."""
        self._add(task)
        task.add_done_callback(self._remove)

    def add_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Enter an asynchronous generator as long as it lives. To be called on its event loop."""
        self._generators[next(self._begun)] = generator

    def add_process(self, group: ProcessGroup) -> None:
        """Enter a process group until its last process is gone."""
        self._add(group)
        if self._last_signal is not None:
            group.signal(self._last_signal)
        group.when_gone(self._remove)

    def _add(self, item: asyncio.Task[Any] | ProcessGroup) -> None:
        with self._lock:
            (self._stragglers if self._given_up else self._alive).add(item)

    def _remove(self, item: ThreadWork | asyncio.Task[Any] | ProcessGroup) -> None:
        with self._lock:
            was_straggler = item in self._stragglers
            self._alive.discard(item)
            self._stragglers.discard(item)
            if not self._waiting and self._on_idle is None:
                return  # as nearly always: LangGraph has a task for each token
            tell = self._changed(stragglers=was_straggler)
        tell()

    def _wait(self, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event]) -> bool:
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

    def _changed(self, *, stragglers: bool) -> Callable[[], None]:
        """Tells those concerned that something has left, of the stragglers or not. Made with the lock held,
        to be called without it."""
        waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        on_idle = None
        if not self._alive:
            waiting, self._waiting = self._waiting, waiting
        if stragglers and not self._stragglers:
            on_idle = self._on_idle
        return lambda: _tell(waiting, on_idle)


async def _close_all(generators: "list[AsyncGenerator[Any, Any]]") -> None:
    for generator in generators:
        try:
            await generator.aclose()
        except Exception as error:  # noqa: BLE001 (their cleaning up is anybody's code)
            logger.debug("%r was not closed in good order: %s", generator, error)


def _telling(on_result: Callable[[str], None], tool_call: str) -> Callable[[Any], None]:
    def ended(future: Any) -> None:
        if not future.cancelled() and future.exception() is None:
            on_result(tool_call)

    return ended


def _count(items: "set[ThreadWork | asyncio.Task[Any] | ProcessGroup] | list[Any]") -> Alive:
    kinds = Counter(
        "tasks"
        if isinstance(item, asyncio.Task)
        else "processes"
        if isinstance(item, ProcessGroup)
        else "threads"
        for item in items
    )
    return Alive(**kinds)


def _tell(
    waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]], on_idle: Callable[[], None] | None
) -> None:
    for loop, changed in waiting:
        with contextlib.suppress(RuntimeError):  # that loop has closed; nobody waits in it
            loop.call_soon_threadsafe(changed.set)
    if on_idle is not None:
        try:
            on_idle()
        except Exception:
            # It runs wherever the last straggler happened to end, where nobody could handle it.
            logger.exception("What was to follow the end of the last straggler failed.")
