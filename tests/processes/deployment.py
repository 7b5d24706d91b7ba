"""The product spread over processes: web processes and workers on a PostgreSQL and a Redis of their own.

Each process is kept by a slot, as a process manager would: whatever ends is started again.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from tests import ROOT
from tests.fakes.tools import MARKS_VARIABLE
from tests.polling import PATIENT
from tests.processes.prefork import Child, Prefork
from tests.provider import RemoteProvider, ScriptedProvider
from tests.services import PostgreSQL, Redis, throw_away

HEARTBEAT = 0.75
MISSED_BEATS = 4  # as in runs.lifecycle.liveness
DRAIN = 3
# Four processes with all their pools, and those of the dead that the server has not noticed yet.
MAX_CONNECTIONS = 300


class Slot:
    """One place for a process of ours, in which there is always one, or soon will be."""

    def __init__(self, name: str, command: list[str], prefork: Prefork, logs: Path) -> None:
        self.name = name
        self.address = ""
        self._process: Child | None = None
        self.ready = asyncio.Event()
        self.unasked: list[str] = []  # ends that nobody asked for, in words
        self.leaves: list[tuple[int, float]] = []  # (exit code, seconds) of those that were told to leave
        self._command = command
        self._prefork = prefork
        self._logs = logs
        self._generation = 0
        self._asked = False
        self._task = asyncio.create_task(self._keep(), name=name)

    @property
    def title(self) -> str:
        """The name of the process that is there now; its connections to PostgreSQL have it, too."""
        return f"{self.name}-{self._generation}"

    @property
    def process(self) -> Child:
        assert self._process is not None, f"{self.name} was never there"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """kill -9."""
        self._asked = True
        self.ready.clear()
        self.process.send_signal(signal.SIGKILL)

    async def leave(self) -> None:
        """SIGTERM, until it has left."""
        self._asked = True
        process, began = self.process, time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = await process.wait()
        self.ready.clear()
        self.leaves.append((code, time.monotonic() - began))

    async def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after some seconds."""
        process = self.process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._process is not None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    async def _keep(self) -> None:
        while True:
            self._generation += 1
            self._asked = False
            await self._run()
            await asyncio.sleep(0.1)

    async def _run(self) -> None:
        log, told = self._logs / f"{self.title}.log", self._logs / f"{self.title}.out"
        environment = {"PGAPPNAME": self.title}
        told.touch()  # the child may be slow to open it
        self._process = await self._prefork.spawn(self._command, environment, told, log)
        ending = asyncio.create_task(self.process.wait())
        try:
            while not ending.done() and not self.ready.is_set():
                await asyncio.wait({ending}, timeout=0.03)
                _, _, value = told.read_text().partition(": ")
                if value.endswith("\n") and not ending.done() and not self._asked:
                    self.address = value.strip()
                    self.ready.set()
            code = await ending
        finally:
            ending.cancel()
            was_ready = self.ready.is_set()
            self.ready.clear()
        if was_ready and not self._asked:
            self.unasked.append(f"{self.title} ended with {code}: {log.read_text()[-3000:]}")


class Deployment:
    """All of it. ``logs`` has a file for each process that there was."""

    def __init__(
        self, postgresql: PostgreSQL, redis: Redis, prefork: Prefork, logs: Path, webs: int, workers: int
    ) -> None:
        self.postgresql = postgresql
        self.redis = redis
        self.logs = logs
        self.webs = [Slot(f"web{n + 1}", ["serve", "--port", "0"], prefork, logs) for n in range(webs)]
        self.workers = [Slot(f"worker{n + 1}", ["work"], prefork, logs) for n in range(workers)]
        self.tokens: list[str] = []  # of the accounts
        self.seen: dict[str, int] = {}  # process id of each worker that signed on, by its id

    @property
    def slots(self) -> list[Slot]:
        return [*self.webs, *self.workers]

    def ready_webs(self) -> list[Slot]:
        """The web processes that seem to be there."""
        return [slot for slot in self.webs if slot.ready.is_set()]

    async def ready(self) -> None:
        """Wait until every process is there."""
        async with asyncio.timeout(2 * PATIENT):
            for slot in self.slots:
                await slot.ready.wait()

    async def database(self) -> psycopg.AsyncConnection[Any]:
        """A connection of our own. Raises psycopg.OperationalError while PostgreSQL is away."""
        return await psycopg.AsyncConnection.connect(
            self.postgresql.url, autocommit=True, application_name="test"
        )

    async def rows(self, query: LiteralString, *parameters: Any) -> list[tuple[Any, ...]]:
        async with await self.database() as connection:
            return await (await connection.execute(query, parameters)).fetchall()

    async def watch_workers(self) -> None:
        """Note who signs on, until cancelled."""
        while True:
            with suppress(psycopg.Error):
                self.seen |= dict(await self.rows("SELECT id::text, pid FROM runs_worker"))
            await asyncio.sleep(0.3)


@asynccontextmanager
async def deployment(
    folder: Path,
    provider: ScriptedProvider | RemoteProvider,
    agents: dict[str, str],
    *,
    webs: int = 2,
    workers: int = 2,
    accounts: int = 4,
    settings: dict[str, str] | None = None,
) -> AsyncIterator[Deployment]:
    """So many web processes and workers, ready, for the duration of the block. ``settings`` are variables of
    their environment that are to differ from those of the tests."""
    async with AsyncExitStack() as opened:
        postgresql = opened.enter_context(throw_away(PostgreSQL))
        redis = opened.enter_context(throw_away(Redis))
        await asyncio.to_thread(_make_room, postgresql)
        logs = folder / "logs"
        logs.mkdir()
        environment = {
            **os.environ,
            "DATA_DIR": str(folder),
            "DATABASE_URL": postgresql.url,
            "REDIS_URL": redis.url,
            "DISPATCH": "procrastinate",
            "SECRET_KEY": "the key of several processes, long enough to be taken for a real one",
            "LOG_LEVEL": "WARNING",
            "AGENTS": json.dumps(agents),
            "OPENAI_BASE_URL": provider.base_url,
            MARKS_VARIABLE: str(folder / "marks"),
            "RUNS_HEARTBEAT": str(HEARTBEAT),
            "RUNS_CANCEL_GRACE": "0.5",
            "RUNS_CANCEL_TIMEOUT": "5",
            "RUNS_DRAIN_TIMEOUT": str(DRAIN),
            "RUNS_IDLE_TIMEOUT": "20",
            "DJANGO_SETTINGS_MODULE": "project.settings",
            **(settings or {}),
        }
        await _run("manage.py", "migrate", environment=environment)
        prefork = await opened.enter_async_context(Prefork(environment))
        cluster = Deployment(postgresql, redis, prefork, logs, webs, workers)
        for slot in cluster.slots:
            opened.push_async_callback(slot.close)
        await cluster.ready()
        cluster.tokens = json.loads(
            await _run("-m", "tests.benchmarks.accounts", str(accounts), environment=environment)
        )
        yield cluster


def _make_room(postgresql: PostgreSQL) -> None:
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # only the processes crash, not the machine
        connection.execute("ALTER SYSTEM SET full_page_writes = off")
        connection.execute(f"ALTER SYSTEM SET max_connections = {MAX_CONNECTIONS}")
    postgresql.stop()
    postgresql.start()


async def _run(*command: str, environment: dict[str, str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    return said


def open_files(pid: int) -> int:
    """How many file descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    """How many threads a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))
