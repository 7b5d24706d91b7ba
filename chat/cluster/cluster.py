"""Start and stop the whole cluster: services, two web processes, two workers, and a load balancer."""

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from chat.cluster.balancer import Address, Balancer
from chat.cluster.children import Child
from chat.cluster.services import LONGEST_SOCKET, CannotStart, PostgreSQL, Redis, until_it_answers
from chat.server import listener
from runs.foundation.shutdown import Shutdown

logger = logging.getLogger(__name__)

MANAGE = Path(settings.BASE_DIR) / "manage.py"
HOST = "127.0.0.1"
# Seconds that a process of ours may take to be ready, migrations included.
PATIENCE = 120.0
# Seconds beyond its drain time that a process may take to leave, and that a service may take.
LEAVING = 5.0

Introduce = Callable[[Mapping[str, str]], None]


class Cluster:
    """Runs on one event loop, until told to leave."""

    def __init__(self, data: Path, introduce: Introduce) -> None:
        self._data = data
        self._introduce = introduce
        self._services: list[Child] = []
        self._web: list[Child] = []
        self._workers: list[Child] = []

    async def run(self, port: socket.socket) -> None:
        """Start all, call ``introduce`` with what quickstart tells, serve, and leave in order.

        Raises CannotStart.
        """
        shutdown = Shutdown(asyncio.get_running_loop(), settings.RUNS_DRAIN_TIMEOUT + 4 * LEAVING)
        shutdown.handle_signals()
        balancer = Balancer(self._addresses)
        with ExitStack() as folders:
            try:
                starting = asyncio.create_task(self._start(folders), name="start")
                told = asyncio.create_task(shutdown.requested.wait(), name="shutdown requested")
                await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    lines = starting.result()
                    self._introduce({**lines, "Address": listener.address(HOST, await balancer.listen(port))})
                    await told
                else:
                    starting.cancel()
            finally:
                shutdown.start_deadline()
                balancer.close()
                await self._stop()

    async def _start(self, folders: ExitStack) -> dict[str, str]:
        environment = {
            **os.environ,
            **await self._start_services(folders),
            "DATA_DIR": str(self._data),
            "DISPATCH": "procrastinate",
            "PORT": "0",
        }

        def child(name: str, command: str, *expected: str) -> Child:
            line = [sys.executable, str(MANAGE), command]
            return Child(name, line, environment=environment, expected=expected, folder=MANAGE.parent)

        first = child("Web process 1", "quickstart", "Address", "User", "Password", "Token")
        self._web.append(first)
        await _until_ready(first)  # the others need the tables that it makes
        lines = dict(first.told)
        self._web.append(child("Web process 2", "serve", "Address"))
        self._workers += [child(f"Worker {number}", "work", "Worker") for number in (1, 2)]
        await asyncio.gather(*map(_until_ready, [*self._web[1:], *self._workers]))
        return lines

    async def _start_services(self, folders: ExitStack) -> dict[str, str]:
        """Start what the environment does not name an address of; the addresses."""
        sockets = self._data / "sockets"
        if len(str(sockets)) > LONGEST_SOCKET - len("/.s.PGSQL.5432.lock"):
            prefix = "turnkeeper-sockets-"
            sockets = Path(folders.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        sockets.mkdir(mode=0o700, exist_ok=True)
        found = {}
        services: dict[str, PostgreSQL | Redis] = {}
        if settings.DATABASE is None:
            services["DATABASE_URL"] = PostgreSQL(self._data / "postgresql", sockets)
        if not settings.REDIS_URL:
            services["REDIS_URL"] = Redis(sockets)
        for leftover in sockets.iterdir():
            leftover.unlink()  # a lock of a socket may name a process id that is somebody else's by now
        for variable, service in services.items():
            process = await asyncio.to_thread(service.prepare)
            self._services.append(process)
            process.start()
            found[variable] = service.url
        await asyncio.gather(*map(until_it_answers, services.values()))
        return found

    async def _stop(self) -> None:
        seconds = settings.RUNS_DRAIN_TIMEOUT + LEAVING
        await asyncio.gather(*(one.stop(seconds) for one in (*self._web, *self._workers)))
        await asyncio.gather(*(one.stop(2 * LEAVING) for one in self._services))

    def _addresses(self) -> list[Address]:
        """Of the web processes that are ready."""
        found = [urlsplit(one.told["Address"]) for one in self._web if one.ready.is_set()]
        return [(parts.hostname or "", parts.port or 0) for parts in found]


async def _until_ready(child: Child) -> None:
    child.start()
    try:
        async with asyncio.timeout(PATIENCE):
            await child.ready.wait()
    except TimeoutError:
        raise CannotStart(f"{child.name} was not ready within {PATIENCE:g} s; its log says why.") from None
