"""The host of this process, and the name of the process."""

import os
import socket
from functools import cache
from pathlib import Path


@cache
def this_host() -> tuple[str, str]:
    """(name, id of its boot) of this host. A process id is unique only within both."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def this_process() -> str:
    """The name of this process among those that serve and work: host and process id."""
    return f"{this_host()[0]}:{os.getpid()}"
