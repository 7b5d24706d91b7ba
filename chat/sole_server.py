"""SQLite serves one process: a lock file sees to it that no second server starts on the same data."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyServed(Exception):
    """Another server uses the same data; the message says which."""


@contextmanager
def sole_server(data_dir: Path) -> Iterator[None]:
    """Be the only server of ``data_dir`` meanwhile. Raises AlreadyServed.

    The kernel lets go of the lock when the process ends, in whatever way.
    """
    with (data_dir / "server.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            process = file.read().strip() or "?"
            raise AlreadyServed(
                f"Process {process} already serves {data_dir}, and with SQLite there can be only one server. "
                "Stop it, or set DATABASE_URL to use PostgreSQL."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
