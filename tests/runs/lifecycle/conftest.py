import os

import pytest

from runs.lifecycle import liveness
from runs.models import Session, Worker


@pytest.fixture
def session(alice):
    return Session.objects.create(owner=alice, agent="assistant")


@pytest.fixture
def worker(db):
    """One that is alive: this process."""
    host, boot = liveness.this_host()
    pid = os.getpid()
    started = liveness.process_started(pid)
    return Worker.objects.create(host=host, boot=boot, pid=pid, pid_started=started, version="test")
