"""``end_with_parent.py PARENT SIGNAL USER COMMAND...``: COMMAND that gets SIGNAL when its parent is gone.

However the parent ends, kill -9 included, no process that it started stays. PARENT is its process id; USER is
the account to switch to, or empty. This is a script, since the process that becomes COMMAND has to ask the
kernel itself. It imports little, to start fast.
"""

import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
# How often to look whether the parent is still there, in seconds, where the system does not tell.
LOOK_EVERY = 0.5


def main(parent: int, number: signal.Signals, user: str, command: list[str]) -> None:
    if user:  # first, since a change of the user resets the request to the kernel
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    if sys.platform != "linux":
        sys.exit(guard(parent, number, command))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the request
        return
    os.execvp(command[0], command)  # noqa: S606 (what our own caller names)


def guard(parent: int, number: signal.Signals, command: list[str]) -> int:
    """Stay in front of COMMAND, pass signals on to it, and look whether the parent is there."""
    with subprocess.Popen(command) as process:  # noqa: S603 (what our own caller names)
        for passed in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(passed, lambda number, _: process.send_signal(number))
        while process.poll() is None:
            if os.getppid() != parent:
                process.send_signal(number)
            time.sleep(LOOK_EVERY)
        return process.returncode


if __name__ == "__main__":
    main(int(sys.argv[1]), signal.Signals[sys.argv[2]], sys.argv[3], sys.argv[4:])
