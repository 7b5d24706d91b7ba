"""Settings that contradict each other are found before anything starts, and said in a sentence."""

import threading
from datetime import timedelta

import pytest
from django.core import checks
from django.utils import timezone

from runs.lifecycle import liveness
from runs.models import Worker
from runs.worker.supervisor import Supervisor


def found():
    return {message.id: message.msg for message in checks.run_checks() if message.id.startswith("runs.")}


def test_workers_need_what_they_share(settings):
    assert found() == {}
    settings.DISPATCH = "procrastinate"
    several = "DISPATCH=procrastinate is for several processes, "
    assert found() == {
        "runs.E001": several + "whose data and queue are in PostgreSQL.",
        "runs.E002": several + "which hear of each other through Redis.",
    }


@pytest.fixture
def foreign(db, settings):
    """The row of a worker on another host."""
    settings.RUNS_HEARTBEAT = 1
    return Worker.objects.create(host="elsewhere", boot="b", pid=1, pid_started="1", version="1")


def test_a_row_alone_is_no_sign_of_life(foreign):
    assert liveness.seen_beating() is None


def test_a_worker_that_beats_is_seen(transactional_db, foreign):
    def beat():
        later = timezone.now() + timedelta(milliseconds=1)
        Worker.objects.filter(id=foreign.id).update(heartbeat_at=later)
        from django.db import connection

        connection.close()

    timer = threading.Timer(0.3, beat)
    timer.start()
    assert liveness.seen_beating() == foreign
    timer.join()


@pytest.mark.parametrize("state", ["leaving", "gone"])
def test_whoever_leaves_or_is_gone_is_in_nobodys_way(foreign, state):
    if state == "leaving":
        Worker.objects.update(leaving=True)
    else:
        host, boot = liveness.this_host()
        Worker.objects.update(host=host, boot=boot, pid=2**22 + 1)
    assert liveness.seen_beating() is None


def test_a_look_for_the_dead_reads_nobody_who_lives_on_another_host(foreign, monkeypatch):
    host, boot = liveness.this_host()
    gone = Worker.objects.create(host=host, boot=boot, pid=2**22 + 1, pid_started="1", version="1")
    read, is_gone = [], liveness.is_gone
    monkeypatch.setattr(liveness, "is_gone", lambda worker: read.append(worker) or is_gone(worker))
    assert liveness.dead() == [gone]
    assert read == [gone]
    assert liveness.dead(but=gone.id) == []


async def test_a_process_is_in_nobodys_way_once_it_left(engine: Supervisor):
    await engine.leave(1)
    assert not await Worker.objects.aexists()
