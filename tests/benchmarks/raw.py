"""Raw LangGraph: the graphs consumed in process, as a program without a server would.

``RawLangGraph`` drives a process of its own (``python -m tests.benchmarks.raw FILE``), which reads orders and
writes results, a line of JSON each.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from typing import Any
from uuid import uuid4

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from tests import ROOT
from tests.benchmarks.agents import AGENTS
from tests.benchmarks.figures import Batch, Turn
from tests.benchmarks.processes import cpu_seconds, end

STREAM_MODES = ["messages", "updates", "tools", "custom"]
_LINE_LIMIT = 2**26  # bytes of one result


class RawLangGraph:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def batch(
        self, agent: str, text: str, count: int = 1, *, threads: Sequence[str] | None = None
    ) -> Batch:
        """Run turns at once, each on a new thread or on the threads that are named."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        threads = threads or [str(uuid4()) for _ in range(count)]
        before = cpu_seconds(self._process.pid)
        self._process.stdin.write(
            json.dumps({"agent": agent, "text": text, "threads": threads}).encode() + b"\n"
        )
        answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError("The process of raw LangGraph has ended; see what it said above.")
        cpu = cpu_seconds(self._process.pid) - before
        return Batch([Turn(**turn) for turn in json.loads(answer)], cpu)


@asynccontextmanager
async def raw_langgraph(path: Path, environment: dict[str, str]) -> AsyncIterator[RawLangGraph]:
    """The process, for the duration of the block; ``path`` is the file of its checkpoints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        str(path),
        cwd=ROOT,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT,
    )
    try:
        yield RawLangGraph(process)
    finally:
        await end(process)


# Inside that process


async def serve(path: str) -> None:
    """Carry out orders until there are no more."""
    async with aiosqlite.connect(path) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()  # sets the journal mode to WAL, too
        await connection.execute("PRAGMA synchronous=NORMAL")
        graphs = {name: resolve_name(build)().compile(checkpointer=saver) for name, build in AGENTS.items()}
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            graph = graphs[asked["agent"]]
            turns = await asyncio.gather(
                *(_turn(graph, thread, asked["text"]) for thread in asked["threads"])
            )
            print(json.dumps([asdict(turn) for turn in turns]), flush=True)


async def _turn(graph: Any, thread: str, text: str) -> Turn:
    chunks = graph.astream(
        {"messages": [{"role": "user", "content": text}]},
        {"configurable": {"thread_id": thread}},
        stream_mode=STREAM_MODES,
        subgraphs=True,
        durability="sync",
    )
    timed = " at " in text
    first, tokens = 0.0, 0
    lags: list[float] = []
    started = monotonic()
    async for _, mode, payload in chunks:
        if mode == "messages" and (said := payload[0].content):
            now = monotonic()
            first = first or now
            tokens += 1
            if timed:
                lags.append(now - float(said))
    return Turn(started, first, monotonic(), tokens, lags=lags)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
