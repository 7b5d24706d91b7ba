"""One turn of one graph, and what can happen to it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from runs import agents, operations, this_process
from runs.foundation.database import in_thread
from runs.models import Run
from runs.states import TERMINAL
from tests.runs.servers import Servers, servers_of_a_test
from tests.runs.waiting import at_rest, terminal, until
from tests.zoo.graphs import LATER, Graph
from tests.zoo.ledger import Entry, Ledger
from tests.zoo.model import GO

if TYPE_CHECKING:
    from django.contrib.auth.models import User

NEXT = "and now?"


@dataclass
class Life:
    """A session with one graph, and the ledger of it."""

    graph: Graph
    ledger: Ledger
    servers: Servers
    owner: "User"
    serve: Callable[..., None]
    policy: dict[str, Any] = field(default_factory=dict)
    session: str = ""
    runs: list[str] = field(default_factory=list)  # of the turn, in order
    _ends: dict[str, int] = field(default_factory=dict)  # of each run, where its part of the ledger ends

    async def begin(self, text: str = GO, hold: str | None = None) -> None:
        """Start the turn. With ``hold``, it is held at this point when this returns."""
        if hold is not None:
            self.ledger.hold(hold)
        self.session = (await in_thread(operations.create_session, self.owner))["id"]
        self.runs.append((await in_thread(operations.start_turn, self.owner, self.session, text))["id"])
        if hold is not None:
            await self.held(hold)

    async def begun_elsewhere(self, hold: str) -> None:
        """The turn that somebody has started is held at this point."""
        await until(lambda: self.has(hold), 20, hold)
        run = await in_thread(Run.objects.get)
        self.session, self.runs = str(run.session_id), [str(run.id)]

    async def held(self, point: str) -> None:
        early = await until(lambda: self.has(point) or self.early_end(), 20, point)
        assert early is True, f"the turn ended before {point}: {early}"

    def has(self, point: str) -> bool:
        return any(entry.point == point for entry in self.ledger.entries())

    def early_end(self) -> str | None:
        ended = Run.objects.filter(id=self.runs[-1], status__in=TERMINAL).first()
        return f"{ended.status} {ended.error_message}" if ended else None

    async def let_go(self) -> float:
        """What was held goes on as soon as the execution knows that it has to stop; when that is."""
        executions = list(self.engine.executions.values())
        await until(lambda: all(one.token.cancelled for one in executions), what="the cancel of the token")
        released = time.time()
        self.ledger.release()
        return released

    async def ended(self) -> Run:
        """The last run of the turn, at its end, when nothing is done for it any more."""
        run = await terminal(self.runs[-1], 20)
        await at_rest(self.engine)
        self.broke_off()
        return run

    async def follow(self, run: Any) -> Run:
        """A run that goes on with the turn, at its end."""
        self.runs.append(str(run["id"]))
        return await self.ended()

    def broke_off(self) -> None:
        """What comes into the ledger from now on belongs to the run that follows this one, if any does."""
        self._ends.setdefault(self.runs[-1], len(self.ledger.entries()))

    @property
    def engine(self) -> Any:
        return this_process.engine

    async def crash(self) -> None:
        """The server is killed, and another one starts."""
        await self.logged()
        self.ledger = self.ledger.kill()
        self.broke_off()
        await self.servers.crash()
        self.open()
        await self.servers.start()

    async def logged(self) -> None:
        """Until all that the executions told to the log is in it."""
        for execution in self.engine.executions.values():
            await execution._log.flush()

    def open(self) -> None:
        """Serve the graph with the ledger as it is now."""
        ledger, build = self.ledger, self.graph.build
        self.serve(agents.agent(**self.policy)(lambda: build(ledger)))

    async def state(self) -> list[BaseMessage]:
        """The messages of the newest checkpoint."""
        graph = agents.load("assistant").graph_on(self.engine.checkpoints.reader())
        found = await graph.aget_state({"configurable": {"thread_id": self.session}})
        return found.values.get("messages", [])

    def entries(self, run: str | None = None) -> list[Entry]:
        """What models and tools did for this turn, or for one run of it."""
        entries, begin, end = self.ledger.entries(), 0, None
        if run is not None:
            place = self.runs.index(run)
            begin = self._ends[self.runs[place - 1]] if place else 0
            end = self._ends[run] if run != self.runs[-1] else None
        return [entry for entry in entries[begin:end] if entry.word != NEXT and entry.name != LATER]


@asynccontextmanager
async def life_of(
    graph: Graph, owner: "User", serve: Callable[..., None], folder: Path, **policy: Any
) -> AsyncIterator[Life]:
    """A server that serves this graph alone."""
    async with servers_of_a_test() as servers:
        life = Life(graph, Ledger(folder), servers, owner, serve, policy)
        life.open()
        try:
            yield life
        finally:
            life.ledger.release()
            await asyncio.sleep(0)
