"""Checkpoints under test on either database, what is put into them, and a graph that uses them."""

import operator
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.conformance.test_utils import (
    generate_checkpoint,
    generate_config,
    generate_metadata,
)
from langgraph.graph import END, START, StateGraph

from runs.memory.checkpoints import Checkpoints
from runs.memory.checkpoints.saver import FencedSaver
from runs.memory.checkpoints.storage import Storage

LIMIT = 20  # seconds after which something that should happen at once is taken to be stuck
ALIAS = "checkpoints_under_test"


@dataclass
class Backend:
    """One of the two databases."""

    name: str
    storage: Callable[[], Awaitable[Storage]]  # opens it; any number of times, for the same contents
    new_run: Callable[[], uuid.UUID]  # makes a run that is running under claim 1
    address: str = ""  # of PostgreSQL

    async def open(self) -> "Store":
        return Store(Checkpoints(await self.storage()), self.new_run)


class Store:
    """Checkpoints under test, and the runs that own them."""

    def __init__(self, checkpoints: Checkpoints, new_run: Callable[[], uuid.UUID]) -> None:
        self.checkpoints = checkpoints
        self.new_run = new_run
        self._run = new_run()

    def saver(self) -> FencedSaver:
        """A saver with its own fence."""
        return self.checkpoints.fenced(self._run, 1, "turn")


async def stored(reader: FencedSaver, config: Any) -> dict[tuple[str, str], Any] | None:
    """``{(task, index of the write): value}`` of the checkpoint that ``config`` names, or None."""
    found = await reader.aget_tuple(config)
    return found and {(task, channel): value for task, channel, value in found.pending_writes or ()}


def put(saver: FencedSaver, thread_id: str, **values: Any) -> tuple[Coroutine[Any, Any, Any], Any]:
    """Start putting a checkpoint; the coroutine, and the config under which it will be found."""
    checkpoint = generate_checkpoint(
        channel_values=values, channel_versions=dict.fromkeys(values, "1"), versions_seen={}
    )
    config = generate_config(thread_id)
    coroutine = saver.aput(config, checkpoint, generate_metadata(), dict.fromkeys(values, "1"))
    return coroutine, generate_config(thread_id, checkpoint_id=checkpoint["id"])


class State(TypedDict):
    words: Annotated[list, DeltaChannel(lambda state, writes: [*state, *(w for ws in writes for w in ws)])]
    count: Annotated[int, operator.add]


def build_graph() -> StateGraph[State]:
    """A graph that counts its answers, and keeps its words as deltas."""

    def answer(state: State) -> dict[str, Any]:
        return {"words": [f"answer {len(state['words'])}"], "count": 1}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph
