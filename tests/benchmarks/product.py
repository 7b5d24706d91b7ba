"""The product: a real server process, and WebSocket clients that are not in it."""

import asyncio
import json
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import cycle
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests import ROOT
from tests.benchmarks.agents import AGENTS
from tests.benchmarks.figures import Batch, Turn
from tests.benchmarks.processes import cpu_seconds, end

# One account may start 240 turns a minute and have 50 sockets: enough of them for any batch.
_ACCOUNTS = 16
_START_LIMIT = 120  # seconds
_ENDINGS = {"run.completed", "run.failed", "run.cancelled", "run.interrupted"}


class Conversation:
    """One session with its socket."""

    def __init__(self, session: str, socket: ClientConnection, token: str = "") -> None:
        self.session = session
        self.token = token  # of its user
        self._socket = socket

    async def turn(self, text: str, on_token: Callable[[int], None] = lambda tokens: None) -> Turn:
        """Start a turn and see it to its completion; ``on_token`` is told how many tokens have arrived.

        Raises RuntimeError when it does not complete.
        """
        turn, ending = await self._turn(text, on_token)
        if ending != "run.completed":
            raise RuntimeError(f"A turn ended with {ending}.")
        return turn

    async def cancelled_turn(self, text: str, after: int) -> float:
        """Start a turn and cancel it when ``after`` tokens have arrived; the time at which that was sent."""
        sent = 0.0
        sending: asyncio.Task[None] | None = None

        def cancel(tokens: int) -> None:
            nonlocal sent, sending
            if tokens >= after and sending is None:
                frame = {"type": "agent.cancel", "request_id": str(uuid4()), "session_id": self.session}
                sent = monotonic()
                sending = asyncio.ensure_future(self._socket.send(json.dumps(frame)))

        _, ending = await self._turn(text, cancel)
        if sending is None or ending != "run.cancelled":
            raise RuntimeError(f"A turn was to be cancelled and ended with {ending}.")
        await sending
        return sent

    async def _turn(self, text: str, on_token: Callable[[int], None]) -> tuple[Turn, str]:
        timed = " at " in text
        turn = Turn(0, 0, 0, 0)
        frame = json.dumps({"type": "turn.start", "request_id": str(uuid4()), "input": text})
        turn.started = monotonic()
        await self._socket.send(frame)
        async for message in self._socket:
            now = monotonic()
            told = json.loads(message)
            if told["type"] == "error":
                raise RuntimeError(f"{told['code']}: {told['message']}")
            if told["type"] != "run.event":
                continue
            event = told["event"]
            turn.rows += 1
            if event["type"] == "message.delta":
                turn.first = turn.first or now
                said = event["data"]["text"].split()
                turn.tokens += len(said)
                turn.delta_rows += 1
                if timed:
                    turn.lags += [now - float(due) for due in said]
                on_token(turn.tokens)
            elif event["type"] in _ENDINGS:
                turn.ended = now
                return turn, event["type"]
        raise RuntimeError("The socket was closed in the middle of a turn.")


class Product:
    """A running server."""

    def __init__(
        self, process: asyncio.subprocess.Process, address: str, tokens: list[str], data: Path
    ) -> None:
        self._pid = process.pid
        self._address = address
        self._tokens = cycle(tokens)
        self._data = data

    @asynccontextmanager
    async def conversations(self, agent: str, count: int = 1) -> AsyncIterator[list[Conversation]]:
        """New sessions with their sockets open, spread over the accounts."""
        async with AsyncExitStack() as stack, httpx.AsyncClient(base_url=self._address, timeout=60) as client:
            yield [await self._open(client, stack, agent) for _ in range(count)]

    async def batch(self, agent: str, text: str, count: int = 1) -> Batch:
        """Run turns at once, each in a new session. Opening these is not part of it."""
        async with self.conversations(agent, count) as conversations:
            before = self.cpu_seconds()
            turns = await asyncio.gather(*(conversation.turn(text) for conversation in conversations))
            return Batch(turns, self.cpu_seconds() - before)

    def cpu_seconds(self) -> float:
        """What the server has spent so far, its clients not counted."""
        return cpu_seconds(self._pid)

    def database_bytes(self) -> dict[str, int]:
        """What the databases hold, write-ahead logs included: ``{"log": ..., "checkpoints": ...}``."""
        files = {"log": "turnkeeper.sqlite3", "checkpoints": "checkpoints.sqlite3"}
        return {name: _database_bytes(self._data / file) for name, file in files.items()}

    async def _open(self, client: httpx.AsyncClient, stack: AsyncExitStack, agent: str) -> Conversation:
        headers = {"Authorization": f"Bearer {next(self._tokens)}"}
        answer = await client.post("api/sessions/", json={"agent": agent}, headers=headers)
        session: str = answer.raise_for_status().json()["id"]
        url = f"{self._address.replace('http', 'ws', 1)}ws/sessions/{session}/"
        socket = await stack.enter_async_context(
            connect(url, additional_headers=headers, compression=None, max_queue=None)
        )
        await socket.recv()  # the session as it is: from here on it is followed
        return Conversation(session, socket)


def _database_bytes(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        return int(pages * connection.execute("PRAGMA page_size").fetchone()[0])


@asynccontextmanager
async def product(data: Path, environment: dict[str, str]) -> AsyncIterator[Product]:
    """A server on an empty data directory, for the duration of the block. Its log is in that directory."""
    environment = {
        **environment,
        "DATA_DIR": str(data),
        "PORT": "0",
        "SECRET_KEY": "",
        "AGENTS": json.dumps(AGENTS),
        "DJANGO_SETTINGS_MODULE": "project.settings",
    }
    log = data / "server.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "manage.py", "quickstart"),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        async with asyncio.timeout(_START_LIMIT):
            address = await _address(process, log)
            tokens = await _tokens(environment)
        yield Product(process, address, tokens, data)
    finally:
        await end(process)


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout is not None
    told: dict[str, str] = {}
    while len(told) < 4:
        line = (await process.stdout.readline()).decode()
        if not line:
            raise RuntimeError(f"The server did not start:\n{await asyncio.to_thread(log.read_text)}")
        if found := re.match(r"(Address|User|Password|Token): (.+)", line):
            told[found[1]] = found[2].strip()
    return told["Address"]


async def _tokens(environment: dict[str, str]) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.accounts", str(_ACCOUNTS)),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await process.communicate()
    tokens: Any = json.loads(told or "[]")
    if not tokens:
        raise RuntimeError("The accounts could not be made; see what was said above.")
    return list(tokens)
