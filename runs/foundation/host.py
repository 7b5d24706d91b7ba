"""Where this process is: its host, its boot, its name."""

import os
import socket
from functools import cache
from pathlib import Path


@cache
def this_host() -> tuple[str, str]:
    """Name of this host and id of its boot: within both, a process id means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def this_process() -> str:
    """The name of this process among all that serve and work: host and process id."""
    return f"{this_host()[0]}:{os.getpid()}"
