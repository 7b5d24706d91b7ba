"""The messages that a checkpoint holds, those of the graphs inside an unfinished step included."""

from collections.abc import Iterator
from typing import TypeAlias

from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

MESSAGES = "messages"

Namespace: TypeAlias = tuple[str, ...]


def messages(state: StateSnapshot) -> list[BaseMessage]:
    """Those of the graph itself; what finished tasks of an unfinished step have written is among them."""
    return list(state.values.get(MESSAGES) or ()) if isinstance(state.values, dict) else []


def inside(state: StateSnapshot) -> Iterator[tuple[Namespace, list[BaseMessage]]]:
    """Those of each graph inside the step that is not finished, from a state read with ``subgraphs=True``."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield tuple(task.state.config["configurable"]["checkpoint_ns"].split("|")), messages(task.state)
            yield from inside(task.state)
