"""A lock file sees to it that there is only one: one server on a SQLite database, one cluster on its data."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyRuns(Exception):
    """Another process has the lock."""

    def __init__(self, process: str) -> None:
        super().__init__(self.__doc__)
        self.process = process  # its id


@contextmanager
def sole(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` meanwhile. Raises AlreadyRuns.

    The kernel lets go of the lock when the process ends, in whatever way.
    """
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyRuns(file.read().strip() or "?") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
