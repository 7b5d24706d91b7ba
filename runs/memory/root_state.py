"""Read the state of a session's graph, and what its newest checkpoint says of itself.

Each checkpoint says by its metadata which ``turn`` wrote it, which ``run`` under which ``claim``, whether
the ``graph`` or the ``repair`` did (``by``), and which turn the graph has ``begun`` last. A turn is named by
the id of its user's message, which a run and those that resume it share. So whether a turn has begun is a
fact. It is not guessed from the messages, which the graph may remove or rewrite.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from runs.errors import Fenced
from runs.foundation.database import DATABASE_UNAVAILABLE
from runs.memory.state_messages import messages_of

_Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]


def root_of(session_id: UUID | str) -> RunnableConfig:
    """What names the newest checkpoint of a session's graph."""
    return {"configurable": {"thread_id": str(session_id), "checkpoint_ns": ""}}


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds."""

    state: StateSnapshot
    # The state lacks what finished tasks of its unfinished step have written, since a reducer refuses that.
    # These writes are in its tasks.
    is_refused: bool = False


async def read(graph: _Graph, config: RunnableConfig, *, subgraphs: bool = False) -> Saved:
    """Read the newest checkpoint that ``config`` names, with what finished tasks have written since.

    ``subgraphs``: with the states of subgraphs in the unfinished step, if all of them can be read.
    """
    try:
        return Saved(await graph.aget_state(config, subgraphs=subgraphs))
    except (Fenced, *DATABASE_UNAVAILABLE):
        raise
    except Exception:  # the reducer is the graph's own code, and a subgraph may be elsewhere and not answer
        if subgraphs:
            return await read(graph, config)
        saver = graph.checkpointer
        found = await saver.aget_tuple(config) if isinstance(saver, BaseCheckpointSaver) else None
        if found is None:
            raise
        # A checkpoint that is named by its own id is read without these writes.
        return Saved(await graph.aget_state(found.config), is_refused=True)


def has_begun(state: StateSnapshot, turn: str) -> bool:
    """Whether the graph has begun this turn, and no later one."""
    metadata: Any = state.metadata or {}
    if "begun" in metadata and metadata["begun"] != turn:
        return False
    if "begun" in metadata and metadata.get("source") != "input":
        return True
    # A checkpoint of an older version, or of the input: its messages are stored beside it, and a crash may
    # have come between. No node has run since that could have removed them.
    return any(message.id == turn for message in messages_of(state))
