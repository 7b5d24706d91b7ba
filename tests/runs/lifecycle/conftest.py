import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runs.foundation.host import this_host
from runs.lifecycle import liveness
from runs.models import Session, Worker

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from tests.runs.harness import Harness


@pytest.fixture
def session(alice: "User") -> Session:
    return Session.objects.create(owner=alice, agent="assistant")


@pytest.fixture
def worker(db: None) -> Worker:
    """One that is alive: this process."""
    host, boot = this_host()
    pid = os.getpid()
    started = liveness.process_started(pid)
    return Worker.objects.create(host=host, boot=boot, pid=pid, pid_started=started, version="test")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends every hanging tool when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def harness(
    engine: Any, alice: "User", serve: Callable[..., None], tmp_path: Path, release: threading.Event
) -> "AsyncIterator[Harness]":
    from tests.runs.harness import open_harness

    async with open_harness(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened
