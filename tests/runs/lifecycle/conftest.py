import os
from typing import TYPE_CHECKING

import pytest

from runs.foundation.host import this_host
from runs.lifecycle import liveness
from runs.models import Session, Worker

if TYPE_CHECKING:
    from django.contrib.auth.models import User


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
