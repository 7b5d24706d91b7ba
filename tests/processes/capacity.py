"""``python -m tests.processes.capacity``: what turns and sockets cost each process, and how far that goes.

For each formation of web processes and workers, on a PostgreSQL and a Redis of its own, it measures the
processor time that processes of each kind spend at rest, on turns of 50 tokens/s that are followed by one
socket each, and on further sockets. From the slopes it says what so many processes would carry if each had a
core, and which resource ends first. On a machine with few cores all processes share these: the slopes hold,
the lags tell where this machine itself is full.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import httpx
import psutil
import redis
from websockets.asyncio.client import ClientConnection, connect

from tests.benchmarks.agents import AGENTS, order
from tests.benchmarks.figures import Turn, percentile
from tests.benchmarks.product import Conversation
from tests.processes.capacity_report import KINDS, RATE, model, slope, table
from tests.processes.deployment import Deployment, deployment
from tests.processes.server import Data
from tests.provider import RemoteProvider, provider_process


@dataclass(frozen=True)
class Sizes:
    turns: tuple[int, ...]  # at once
    seconds: int  # of each turn
    followers: int  # further sockets on one turn
    idle: int  # sockets on sessions in which nothing happens
    rest: int  # seconds in which nothing is asked


FULL = Sizes(turns=(5, 10, 20, 30), seconds=10, followers=40, idle=200, rest=15)
QUICK = Sizes(turns=(2, 4), seconds=2, followers=4, idle=10, rest=2)


@dataclass
class Sample:
    """What was spent while something was measured."""

    seconds: float
    cpu: dict[str, float]  # cores in use, by kind of process
    commits: float  # of PostgreSQL, per second
    commands: float  # of Redis, per second
    connections: int  # to PostgreSQL, at the end


class Meter:
    """Reads what the processes of a deployment have spent."""

    def __init__(self, cluster: Deployment) -> None:
        self._cluster = cluster
        self._redis = redis.Redis.from_url(cluster.redis.url)

    def close(self) -> None:
        self._redis.close()

    @asynccontextmanager
    async def sample(self) -> AsyncIterator[list[Sample]]:
        """Yields a list that holds one Sample when the block has ended."""
        taken: list[Sample] = []
        cpu, (commits, _), commands = self._cpu(), await self._database(), self._commands()
        began = time.monotonic()
        yield taken
        seconds = time.monotonic() - began
        cpu_then, (commits_then, connections), commands_then = (
            self._cpu(),
            await self._database(),
            self._commands(),
        )
        taken.append(
            Sample(
                seconds,
                {kind: (cpu_then[kind] - cpu[kind]) / seconds for kind in KINDS},
                (commits_then - commits) / seconds,
                (commands_then - commands) / seconds,
                connections,
            )
        )

    def memory(self, kind: str) -> int:
        """Bytes resident of all processes of a kind."""
        return sum(process.memory_info().rss for process in self._processes(kind))

    def _processes(self, kind: str) -> list[psutil.Process]:
        match kind:
            case "web":
                pids = [slot.pid for slot in self._cluster.webs]
            case "worker":
                pids = [slot.pid for slot in self._cluster.workers]
            case "postgresql":
                pids = [self._cluster.postgresql.pid]
            case "redis":
                pids = [self._cluster.redis.pid]
        return [psutil.Process(pid) for pid in pids]

    def _cpu(self) -> dict[str, float]:
        """Seconds of processor time so far, by kind."""
        return {kind: sum(map(_spent, self._processes(kind))) for kind in KINDS}

    async def _database(self) -> tuple[int, int]:
        ((commits, connections),) = await self._cluster.rows(
            "SELECT sum(xact_commit)::int, (SELECT count(*)::int FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND application_name ~ '^(web|worker)')"
            " FROM pg_stat_database"
        )
        return commits, connections

    def _commands(self) -> int:
        return self._redis.info("stats")["total_commands_processed"]


def _spent(process: psutil.Process) -> float:
    """Processor time of a process with its children, those that have ended included."""
    times = process.cpu_times()
    living = (child.cpu_times() for child in process.children(recursive=True))
    return (
        times.user
        + times.system
        + times.children_user
        + times.children_system
        + sum(child.user + child.system for child in living)
    )


class Clients:
    """Who starts turns and follows them, spread over the web processes."""

    def __init__(self, cluster: Deployment, http: httpx.AsyncClient, stack: AsyncExitStack) -> None:
        self._accounts = cycle(cluster.tokens)
        self._webs = cycle(slot.address for slot in cluster.webs)
        self._http = http
        self._stack = stack

    async def converse(self, count: int) -> list[Conversation]:
        """So many new conversations, their sockets open until the stack is left."""
        return [await self._converse() for _ in range(count)]

    async def follow(self, conversation: Conversation, count: int) -> None:
        """So many further sockets on a conversation; whatever they are told is read and dropped."""
        for _ in range(count):
            socket = await self._open(conversation.session, conversation.token)
            reading = asyncio.create_task(_read(socket))
            self._stack.callback(reading.cancel)

    async def _converse(self) -> Conversation:
        token = next(self._accounts)
        answer = await self._http.post(
            f"{next(self._webs)}api/sessions/", json={"agent": "lean"}, headers=_headers(token)
        )
        session = answer.raise_for_status().json()["id"]
        return Conversation(session, await self._open(session, token), token)

    async def _open(self, session: str, token: str) -> ClientConnection:
        url = f"{next(self._webs).replace('http', 'ws', 1)}ws/sessions/{session}/"
        opening = connect(url, additional_headers=_headers(token), compression=None, max_queue=None)
        socket = await self._stack.enter_async_context(opening)
        await socket.recv()
        return socket


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def _read(socket: ClientConnection) -> None:
    async for _ in socket:
        pass


@asynccontextmanager
async def clients(cluster: Deployment) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack, httpx.AsyncClient(timeout=60) as http:
        yield Clients(cluster, http, stack)


async def measure(folder: Path, provider: RemoteProvider, webs: int, workers: int, sizes: Sizes) -> Data:
    """The figures of one formation: a dict for the table and the model."""
    settings = {"RUNS_HEARTBEAT": "5", "RUNS_IDLE_TIMEOUT": "60"}
    async with deployment(
        folder, provider, AGENTS, webs=webs, workers=workers, accounts=32, settings=settings
    ) as cluster:
        meter = Meter(cluster)
        try:
            return await _measured(cluster, meter, sizes)
        finally:
            meter.close()


async def _measured(cluster: Deployment, meter: Meter, sizes: Sizes) -> Data:
    async with clients(cluster) as some:  # the first turn of a process imports and connects
        await asyncio.gather(*(one.turn(order(5, RATE)) for one in await some.converse(8)))
    say("  at rest")
    async with meter.sample() as resting:
        await asyncio.sleep(sizes.rest)
    levels = {0: resting[0]}
    lags = {}
    for count in sizes.turns:
        async with clients(cluster) as some:
            conversations = await some.converse(count)
            async with meter.sample() as taken:
                turns = await asyncio.gather(*(_paced(one, sizes.seconds) for one in conversations))
        levels[count] = taken[0]
        lags[count] = percentile([lag for turn in turns for lag in turn.lags], 95) * 1000
        say(f"  {count} turns: 95 of 100 tokens at most {lags[count]:.0f} ms late, {_cores(taken[0])}")
    async with clients(cluster) as some:
        (one,) = await some.converse(1)
        async with meter.sample() as alone:
            await _paced(one, sizes.seconds)
        await some.follow(one, sizes.followers)
        async with meter.sample() as followed:
            await _paced(one, sizes.seconds)
    say(f"  {sizes.followers} followers of one turn: {_cores(followed[0])}")
    async with clients(cluster) as some:
        memory = meter.memory("web")
        await some.converse(sizes.idle)
        async with meter.sample() as idle:
            await asyncio.sleep(sizes.rest)
        grown = meter.memory("web") - memory
    say(f"  {sizes.idle} idle sockets: {_cores(idle[0])}")
    return {
        "rest": levels[0],
        "lags": lags,
        "turn": {kind: slope({n: level.cpu[kind] for n, level in levels.items()}) for kind in KINDS},
        "commits": slope({n: level.commits for n, level in levels.items()}),
        "commands": slope({n: level.commands for n, level in levels.items()}),
        "follower": slope({0: alone[0].cpu["web"], sizes.followers: followed[0].cpu["web"]}),
        "idle": slope({0: levels[0].cpu["web"], sizes.idle: idle[0].cpu["web"]}),
        "idle_kib": grown / 1024 / sizes.idle,
        "connections": max(level.connections for level in levels.values()),
    }


async def _paced(conversation: Conversation, seconds: int) -> Turn:
    await asyncio.sleep(random.uniform(0, 1 / RATE))  # not all tokens of all turns at one moment
    return await conversation.turn(order(RATE * seconds, RATE))


def _cores(sample: Sample) -> str:
    return ", ".join(f"{kind} {sample.cpu[kind]:.2f}" for kind in KINDS) + " cores"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(quick: bool) -> None:
    sizes = QUICK if quick else FULL
    found = {}
    with provider_process() as provider:
        for webs, workers in ((1, 1), (1, 2), (2, 1), (2, 2)):
            say(f"{webs} web, {workers} worker")
            with tempfile.TemporaryDirectory(prefix="turnkeeper-capacity-") as folder:
                found[webs, workers] = asyncio.run(measure(Path(folder), provider, webs, workers, sizes))
    print("\n".join([*table(found), "", *model(found)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.processes.capacity")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how much is carried")
    main(parser.parse_args().quick)
