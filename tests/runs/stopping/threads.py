"""Functions in the threads of a run, which can be held up."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from runs.stopping.cancel_token import CancelToken, current
from runs.stopping.executor import TrackingExecutor

T = TypeVar("T")

LIMIT = 20  # seconds after which something that should happen at once is taken to be stuck


def submit(
    executor: TrackingExecutor, token: CancelToken, function: Callable[..., T], *args: Any
) -> Future[T]:
    """Submit in the context of ``token``'s run."""
    before = current.set(token)
    try:
        return executor.submit(function, *args)
    finally:
        current.reset(before)


def hold(executor: TrackingExecutor, token: CancelToken, gate: threading.Event) -> Future[str]:
    """Occupy a thread until the gate opens; returns once the function has started."""
    started = threading.Event()

    def block() -> str:
        started.set()
        gate.wait()
        return "late"

    future = submit(executor, token, block)
    assert started.wait(LIMIT)
    return future


def most_at_work(executor: TrackingExecutor) -> int:
    """How many of a hundred functions of a run were at work at the same time; each meets another."""
    token, meeting = CancelToken(), threading.Barrier(2)
    lock, at_work, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        meeting.wait(LIMIT)
        with lock:
            at_work -= 1

    for future in [submit(executor, token, work) for _ in range(100)]:
        future.result(LIMIT)
    return most
