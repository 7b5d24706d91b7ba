"""The messages in the state of a graph and of the subgraphs in its unfinished step."""

from collections.abc import Iterator
from typing import TypeAlias

from langchain_core.messages import BaseMessage
from langgraph.types import StateSnapshot

MESSAGES = "messages"

Namespace: TypeAlias = tuple[str, ...]


def messages_of(state: StateSnapshot) -> list[BaseMessage]:
    """The messages of the graph itself, with those that finished tasks of an unfinished step have written."""
    return list(state.values.get(MESSAGES) or ()) if isinstance(state.values, dict) else []


def messages_of_subgraphs(state: StateSnapshot) -> Iterator[tuple[Namespace, list[BaseMessage]]]:
    """(namespace, messages) of each subgraph in the unfinished step, at any depth.

    The state must have been read with ``subgraphs=True``.
    """
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            yield (
                tuple(task.state.config["configurable"]["checkpoint_ns"].split("|")),
                messages_of(task.state),
            )
            yield from messages_of_subgraphs(task.state)
