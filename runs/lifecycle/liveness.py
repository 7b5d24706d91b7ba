"""Which workers are alive: by their heartbeat on the database's clock, and by their process on this host."""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet
from django.db.models.functions import Now

from runs import this_process
from runs.foundation.host import this_host
from runs.models import Worker

# A clock that goes on while the machine sleeps, as the database's does.
_clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)

# A worker is dead after this many missed heartbeats.
MISSED_BEATS = 4


class Watch:
    """The times in which this process could see the heartbeats of others.

    It cannot before it starts, while the database is unavailable or takes no writes, and while the machine
    sleeps. A worker may be silent and alive then, so that time does not count against it.
    """

    def __init__(self, clock: Callable[[], float] = _clock) -> None:
        self._clock = clock
        self._beaten_at = clock()
        # Of each gap: when it ended, how many seconds it was.
        self._gaps: deque[tuple[float, float]] = deque([(self._beaten_at, math.inf)], maxlen=100)

    def beat(self) -> None:
        """Note that the database takes heartbeats. To be called with each own heartbeat, from any thread."""
        now, before = self._clock(), self._beaten_at
        self._beaten_at = now
        if now - before > settings.RUNS_HEARTBEAT * 2:
            self._gaps.append((now, now - before))

    def allows(self, silence: timedelta) -> bool:
        """Whether a worker with this ``silence`` may be alive. Called after the database has answered."""
        now = self._clock()
        allowed = patience().total_seconds()
        if now - self._beaten_at > settings.RUNS_HEARTBEAT * 2:
            allowed += now - self._beaten_at
        for ended, seconds in reversed(self._gaps):
            if now - ended >= allowed:
                break
            allowed += seconds
        return silence.total_seconds() <= allowed


def process_started(pid: int) -> str:
    """When the process with this id started, in ticks since boot; empty if that is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return "" if state in "ZX" else fields[18]


def silent() -> QuerySet[Worker]:
    """Workers that missed their heartbeats. On SQLite all share one host, and only a gone process is dead."""
    if connection.vendor == "sqlite":
        return Worker.objects.none()
    return Worker.objects.filter(heartbeat_at__lt=Now() - patience())


def beating() -> QuerySet[Worker]:
    """Workers whose last heartbeat is not too old, on whatever database."""
    return Worker.objects.filter(heartbeat_at__gte=Now() - patience())


def taking_turns() -> list[Worker]:
    """Workers that are alive, as far as one can see, and take turns."""
    return [worker for worker in beating().filter(leaving=False) if not is_gone(worker)]


def patience() -> timedelta:
    """How long a worker may be silent."""
    return timedelta(seconds=settings.RUNS_HEARTBEAT * MISSED_BEATS)


def is_gone(worker: Worker) -> bool:
    """Whether the worker's process provably does not exist any more."""
    host, boot = this_host()
    if worker.host != host:
        return False
    if worker.boot != boot:
        return True
    if Path("/proc/self/stat").exists():
        return process_started(worker.pid) != worker.pid_started
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def dead(but: UUID | None = None, watch: Watch | None = None) -> list[Worker]:
    """The dead workers, without the worker ``but``. ``watch`` tells how long a worker may be silent.

    Every process asks with each heartbeat. So of the living workers only those of this host are read.
    """
    silent_ids = _silent_too_long(watch)
    looked_at = Worker.objects.filter(Q(id__in=silent_ids) | Q(host=this_host()[0]))
    others = looked_at.exclude(id=but) if but else looked_at
    return [worker for worker in others if worker.id in silent_ids or is_gone(worker)]


def is_dead(worker: Worker) -> bool:
    """Gone, or silent for too long."""
    watch = this_process.engine.watch if this_process.engine else None
    return is_gone(worker) or worker.id in _silent_too_long(watch)


def _silent_too_long(watch: Watch | None) -> set[UUID]:
    silence = ExpressionWrapper(Now() - F("heartbeat_at"), DurationField())
    found = list(silent().values_list("id", silence))
    return {worker_id for worker_id, so_long in found if watch is None or not watch.allows(so_long)}


def seen_beating() -> Worker | None:
    """A worker whose heartbeat we see while we wait, or None. Takes at most the time of one and a half beats.

    The row of a worker that was killed on another host looks alive for a while. Only a beat is proof.
    """
    deadline = time.monotonic() + settings.RUNS_HEARTBEAT * 1.5
    candidates = {one.id: one for one in taking_turns()}
    while candidates and time.monotonic() < deadline:
        time.sleep(min(0.2, settings.RUNS_HEARTBEAT / 5))
        for found in beating().filter(id__in=list(candidates), leaving=False):
            if found.heartbeat_at != candidates[found.id].heartbeat_at:
                return found
    return None
