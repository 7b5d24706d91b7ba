"""A child process in a group of its own, so that it can be ended together with all it has started."""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES = Path("/proc")
# How often to look, in seconds, where the system cannot tell us that a grandchild has ended.
LOOK_EVERY = 0.1


class ProcessGroup:
    """A process started as the leader of a new session and group.

    It lives until the last process of the group has ended, grandchildren included. A process that
    leaves the group by itself (``setsid``) is not seen any more.
    """

    def __init__(self, args: Any, **popen_kwargs: Any) -> None:
        self.process = subprocess.Popen(args, start_new_session=True, **popen_kwargs)  # noqa: S603 (the tool's own)
        self._gone = False
        self._lock = threading.Lock()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the group; nothing once it is gone."""
        with self._lock:
            if not self._gone:
                # macOS answers with PermissionError when all that is left are zombies.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, number)

    def when_gone(self, callback: "Callable[[ProcessGroup], None]") -> None:
        """Call ``callback`` with this group, from a thread, when its last process has ended."""
        name = f"process-{self.process.pid}"
        threading.Thread(target=self._watch, args=(callback,), name=name, daemon=True).start()

    def _watch(self, callback: "Callable[[ProcessGroup], None]") -> None:
        self.process.wait()  # Popen lets several threads wait, so the tool's own wait() is not disturbed
        _wait_for_group(self.process.pid)
        with self._lock:
            self._gone = True  # from here on the number may belong to somebody else
        callback(self)


def _wait_for_group(group: int) -> None:
    while _exists(group):
        if not PROCESSES.exists():
            time.sleep(LOOK_EVERY)
        elif members := _living_members(group):
            _wait_for_exit(members[0])
        else:
            return  # only zombies are left, whose new parent does not collect them


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _living_members(group: int) -> list[int]:
    """The processes of a group that are no zombies."""
    members = []
    for entry in PROCESSES.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended since
                # The name stands in brackets and may itself contain brackets and spaces.
                state, _parent, its_group = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
                if int(its_group) == group and state not in (b"Z", b"X"):
                    members.append(int(entry.name))
    return members


def _wait_for_exit(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a system without this call, or without leave to use it
        time.sleep(LOOK_EVERY)
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
    finally:
        os.close(descriptor)
