"""The event loop's default executor. It knows which run each of its threads works for.

Synchronous tools and nodes of any graph run in the loop's default executor. So do name look-ups,
``asyncio.to_thread`` and the serialising of the PostgreSQL saver. The context of the submission tells the
run, without wrapping a tool.
"""

import contextlib
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from runs.stopping import containment
from runs.stopping.cancel_token import CancelToken, current, current_call

P = ParamSpec("P")
T = TypeVar("T")

RUN_THREADS = 64  # at work for runs at one time, without what was given up on
OTHER_THREADS = 16  # at work for everything else


class TrackingExecutor(ThreadPoolExecutor):
    """Runs functions in daemon threads and enters each in the activity of the run it belongs to.

    - Functions of runs and all others have bounds of their own. However many tools there are and however
      slow, they do not hold up a name look-up or a saver.
    - What is queued for a run that gets cancelled never starts; its future is cancelled.
    - A function that was given up on (``RunActivity.give_up``) frees its place; its thread ends with it.
    - Neither ``shutdown`` nor the exit of the interpreter waits for a thread, since a hung tool may
      never end.

    It is a ThreadPoolExecutor because asyncio insists on one; it shares nothing with it but the type.
    """

    def __init__(self, max_workers: int = RUN_THREADS, other_workers: int = OTHER_THREADS) -> None:
        super().__init__(max_workers)
        self._runs = _Pool(max_workers, "run")
        self._others = _Pool(other_workers, "other")

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        token = current.get()
        pool = self._others if token is None else self._runs
        work: Callable[[], T] = partial(function, *args, **kwargs)
        if token is not None:
            # run_in_executor leaves the context behind. What belongs to a run is known by it.
            work = partial(containment.call, partial(contextvars.copy_context().run, work))
        call = SubmittedFunction(pool, token, work)
        if token is not None and not token.activity.add_thread(call):
            call.cancel()
            return call
        try:
            pool.put(call)
        except RuntimeError:
            call.cancel()
            raise
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work and let idle threads end. Does not wait, whatever ``wait`` says."""
        for pool in (self._runs, self._others):
            pool.close(cancel_futures)


class SubmittedFunction(Future[T]):
    """A function and the future of its result. They are one object, so that they make no cycle."""

    def __init__(self, pool: "_Pool", token: CancelToken | None, function: Callable[[], T]) -> None:
        super().__init__()
        self.tool_call = (
            current_call.get() if token is not None else None
        )  # the id of the tool call it works for
        self.holds_place = False  # a thread of the pool's bound runs it; guarded by the pool's lock
        self._pool = pool
        self._token = token
        self._function: Callable[[], T] | None = function

    def cancel(self) -> bool:
        """Cancel it if it has not started. The run's cancel asks for that, or the task that awaits it."""
        cancelled = super().cancel()
        if cancelled:
            self._function = None
            self._leave()
        return cancelled

    def give_up(self) -> None:
        """Stop counting it against the threads of its executor."""
        self._pool.give_up(self)

    def run(self) -> None:
        if self._token is not None and self._token.cancelled:
            self.cancel()
        function, self._function = self._function, None
        if not self.set_running_or_notify_cancel() or function is None:
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 (it is the caller's, who gets it from the future)
            self._leave()
            self.set_exception(error)
            del self  # the traceback holds this frame, and we hold the error
        else:
            self._leave()
            self.set_result(result)

    def _leave(self) -> None:
        if self._token is not None:
            self._token.activity.remove_thread(self)


_Inbox: TypeAlias = SimpleQueue[SubmittedFunction[Any] | None]


class _Pool:
    """Daemon threads up to a bound. They start when needed and are kept."""

    def __init__(self, bound: int, name: str) -> None:
        self._bound = bound
        self._name = name
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._threads = 0  # without those that were given up on
        self._idle: list[_Inbox] = []  # where each idle thread waits, the last one first
        self._queue: deque[SubmittedFunction[Any]] = deque()  # not empty only while no thread is idle
        self._closed = False

    def put(self, call: SubmittedFunction[Any]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._idle:
                call.holds_place = True
                self._idle.pop().put(call)
            else:
                self._queue.append(call)
                try:
                    self._start_thread()
                except RuntimeError:  # the system gives no more threads; those we have will take it
                    if not self._threads:
                        self._queue.pop()
                        raise

    def give_up(self, call: SubmittedFunction[Any]) -> None:
        """Count the thread that runs this function no longer. The thread ends with the function."""
        with self._lock:
            if call.holds_place:
                call.holds_place = False
                self._threads -= 1
                with contextlib.suppress(RuntimeError):  # the next one to be put in will try again
                    self._start_thread()

    def close(self, cancel_queued: bool) -> None:
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().put(None)
            queued = list(self._queue) if cancel_queued else []
        for call in queued:
            call.cancel()

    def _start_thread(self) -> None:
        """Let a new thread take what is queued, within the bound. Called with the lock held."""
        if not self._queue or self._threads >= self._bound:
            return
        name = f"{self._name}-{next(self._numbers)}"
        inbox: _Inbox = SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
        self._threads += 1
        call = self._queue.popleft()
        call.holds_place = True
        inbox.put(call)

    def _serve(self, inbox: _Inbox) -> None:
        call = inbox.get()
        while call is not None:
            call.run()
            with self._lock:
                if not call.holds_place:
                    return  # given up on meanwhile; its place belongs to another
                call.holds_place = False
                if self._queue:
                    call = self._queue.popleft()
                    call.holds_place = True
                    continue
                if self._closed:
                    return
                self._idle.append(inbox)
            del call  # an idle thread holds on to nothing
            call = inbox.get()
