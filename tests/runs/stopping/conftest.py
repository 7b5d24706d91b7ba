"""The token of a run, an executor, and a gate for what works in it."""

import threading
from collections.abc import Iterator

import pytest

from runs.stopping.cancel_token import CancelToken
from runs.stopping.executor import TrackingExecutor


@pytest.fixture
def token() -> Iterator[CancelToken]:
    """The token of a run; whatever it started is ended with the test."""
    token = CancelToken()
    yield token
    token.activity.kill_processes()
    token.activity.cancel_tasks()


@pytest.fixture
def executor() -> Iterator[TrackingExecutor]:
    executor = TrackingExecutor(max_workers=2, other_workers=2)
    yield executor
    executor.shutdown(cancel_futures=True)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds up the functions of a test, and lets them go at its end whatever happened."""
    gate = threading.Event()
    yield gate
    gate.set()
