"""A lock file, so that a SQLite database has one server and the data of a cluster one cluster."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyRunning(Exception):
    """Another process has the lock."""

    def __init__(self, process: str) -> None:
        super().__init__(self.__doc__)
        self.process = process  # its id


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock on ``path`` for the time of the block. Raises AlreadyRunning.

    The kernel releases the lock when the process ends, however it ends.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyRunning(file.read().strip() or "?") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
