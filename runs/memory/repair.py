"""Bring a session's checkpoint into the form that every later LLM call can be sent.

What that form is, ``runs.memory.normalise`` says. Here is how it gets into a checkpoint of any graph, without
knowing its nodes:

- Messages are written with ``aupdate_state(..., as_node=START)``, as the user's input is; then
  ``aupdate_state(None, as_node=END)`` clears what that, and the cut turn, left pending.
- A state read without a checkpoint id shows what finished tasks of an unfinished step have written, but
  an update starts from the checkpoint alone and drops those writes. So one update writes all of it: the
  messages and whatever else the finished tasks gave.
- Which update brings the channel from one list to the other is tried out on a copy of the channel, whose
  reducer is the graph's own affair: the smallest one that works is taken. Appending costs what is
  appended, however long the history; only a gap in old history has the whole list written anew.
- A START with a conditional edge would run the graph's routing function over our update. Then another
  node's name is used, one with plain edges: writing under a name runs the node's edges, never the node.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.channels.base import BaseChannel
from langgraph.constants import END, START
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Overwrite, StateSnapshot

from runs.log import transcript
from runs.log.transcript import Transcript
from runs.memory import brought_messages, state_messages
from runs.memory.normalise import Changes, answered, sendable, without
from runs.memory.state_messages import MESSAGES

_Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

# One is enough, unless writes outside all tasks are pending too, or clearing makes a deferred node ready.
_ATTEMPTS = 4


class RepairFailed(RuntimeError):
    """The checkpoint was written and does not read back as it should."""


@dataclass(slots=True)
class RepairReport:
    """What a repair did."""

    changes: Changes = field(default_factory=Changes)
    written: bool = False  # messages were written
    rewritten: bool = False  # all of them, not only what was missing
    cleared: tuple[str, ...] = ()  # nodes that were pending

    @property
    def changed(self) -> bool:
        return self.written or bool(self.cleared)


async def repair(
    graph: _Graph,
    session_id: UUID | str,
    transcripts: Sequence[Transcript],
    *,
    order: Sequence[str] = (),
    drop: Collection[str] = (),
    seed: Sequence[BaseMessage] = (),
) -> RepairReport:
    """Make the history of this session sendable; nothing is pending afterwards.

    ``transcripts`` are the turns that are not repaired yet, in the order of their positions, and ``order``
    the user message ids of all turns, in theirs; without it there are no others. ``drop`` are those of turns
    that were retried: each goes, up to where the next turn begins. ``seed`` comes first, unless it is there.
    The whole list is looked at, not only these turns. Doing it again changes and writes nothing. ``graph``
    must write through the saver of the execution that owns the session now. Raises RepairFailed, and what
    the saver raises.
    """
    order = order or [said.user.id for said in transcripts]
    report = RepairReport()

    def with_results(state: StateSnapshot, changes: Changes) -> list[BaseMessage]:
        return answered(without(state_messages.messages(state), drop, order, changes), transcripts, changes)

    thread = {"thread_id": str(session_id)}
    # A subgraph that keeps a memory of its own keeps its cut calls there, too. It goes first: what it then
    # holds of the turn is taken over word for word, since it gets it back with the next input.
    elsewhere: list[BaseMessage] = []
    async for namespace, subgraph in graph.aget_subgraphs(recurse=True):
        if isinstance(subgraph, CompiledStateGraph) and subgraph.checkpointer is True:
            own: RunnableConfig = {"configurable": thread | {"checkpoint_ns": namespace}}
            remembering = _Thread(graph, subgraph, own)
            await _repair_thread(remembering, with_results, report)
            elsewhere += state_messages.messages(await remembering.state())

    def with_turns(state: StateSnapshot, changes: Changes) -> list[BaseMessage]:
        open_steps = set(_pending(state))
        messages = state_messages.messages(state)
        return sendable(
            [*brought_messages.missing(seed, messages), *messages],
            transcripts,
            order=order,
            drop=drop,
            was_under_way=lambda said: _step_of(said) in open_steps,
            elsewhere=[
                *elsewhere,
                *(message for _, inner in state_messages.inside(state) for message in inner),
            ],
            changes=changes,
        )

    root: RunnableConfig = {"configurable": thread | {"checkpoint_ns": ""}}
    await _repair_thread(_Thread(graph, graph, root), with_turns, report)
    return report


@dataclass(frozen=True, slots=True)
class _Thread:
    """One line of checkpoints: of the graph, or of a subgraph with a memory of its own."""

    root: _Graph  # reads and writes
    graph: _Graph  # whose channels they are
    config: RunnableConfig

    async def state(self) -> StateSnapshot:
        return await self.root.aget_state(self.config, subgraphs=True)

    async def checkpoint(self, state: StateSnapshot) -> StateSnapshot:
        """The state an update starts from: without what is pending."""
        return await self.root.aget_state(state.config) if any(task.result for task in state.tasks) else state

    async def write(self, values: dict[str, Any]) -> None:
        await self.root.aupdate_state(self.config, values, as_node=_writing_node(self.graph, values))

    async def clear(self) -> None:
        await self.root.aupdate_state(self.config, None, as_node=END)


async def _repair_thread(
    thread: _Thread, form: Callable[[StateSnapshot, Changes], list[BaseMessage]], report: RepairReport
) -> None:
    """Give the thread's messages their ``form`` and leave nothing pending."""
    channel = thread.graph.channels.get(MESSAGES)
    for attempt in range(_ATTEMPTS):
        state = await thread.state()
        stored = state_messages.messages(await thread.checkpoint(state))
        changes = report.changes if attempt == 0 else Changes()
        wanted = form(state, changes) if isinstance(channel, BaseChannel) else stored
        pending = _pending(state)
        if not pending and _same(stored, wanted):
            return
        if attempt == 0:
            report.cleared += pending
        values = _carried(thread.graph, state)
        if isinstance(channel, BaseChannel) and not _same(stored, wanted):
            values[MESSAGES], rewrites = _update(channel, stored, wanted)
            report.written = True
            report.rewritten |= rewrites
        if values:
            await thread.write(values)
        await thread.clear()
    raise RepairFailed(f"The checkpoint of {thread.config['configurable']} does not take its repair.")


def _values(state: StateSnapshot) -> dict[str, Any]:
    return state.values if isinstance(state.values, dict) else {}


def _pending(state: StateSnapshot) -> tuple[str, ...]:
    """The nodes of the step that is not finished, those that have finished in it included."""
    return tuple(task.name for task in state.tasks)


def _same(some: Sequence[BaseMessage], others: Sequence[BaseMessage]) -> bool:
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(one: BaseMessage, other: BaseMessage) -> bool:
    """Equal in all that is sent or shown. An artifact of a tool need not equal itself once it was stored."""
    return one is other or _essence(one) == _essence(other)


def _essence(message: BaseMessage) -> tuple[Any, ...]:
    calls = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else ()
    result = (message.tool_call_id, message.status) if isinstance(message, ToolMessage) else ()
    return (message.type, message.id, message.content, message.additional_kwargs, *calls, *result)


def _step_of(message: transcript.Message) -> str:
    """The node of the graph itself in which this was said, however deep inside."""
    namespace = message.namespace or ()
    if isinstance(namespace, str):
        namespace = namespace.split("|")
    return str(namespace[0]).split(":")[0] if namespace else message.node


# Updates


def _update(
    channel: BaseChannel[Any, Any, Any], stored: list[BaseMessage], wanted: list[BaseMessage]
) -> tuple[Any, bool]:
    """The smallest update that makes ``wanted`` of ``stored``, and whether it writes everything anew."""
    edits = _edits(stored, wanted)
    if edits is not None and _gives(channel, stored, *edits):
        return edits[0], False
    anew = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *wanted]
    # The latter two for reducers that know nothing of removals, and for channels without a reducer.
    for update in (anew, Overwrite(wanted), wanted):
        if _gives(channel, stored, update, wanted):
            return update, True
    raise RepairFailed(f"No update of the channel {MESSAGES!r} gives the history that is needed.")


def _edits(
    stored: list[BaseMessage], wanted: list[BaseMessage]
) -> tuple[list[BaseMessage], list[BaseMessage]] | None:
    """Replacements in place, removals, additions at the end; and what they give. None if that is not enough.

    Results that stand too late are removed and added again under new ids, all in one update: nothing is
    lost whenever the process dies. Nobody refers to a result by its own id.
    """
    edits: list[BaseMessage] = []
    removed: set[str] = set()
    position = 0
    for message in stored:
        if position < len(wanted) and wanted[position].id == message.id:
            if not _equal(message, wanted[position]):
                edits.append(wanted[position])
            position += 1
        elif message.id is None:
            return None
        else:
            edits.append(RemoveMessage(id=message.id))
            removed.add(message.id)
    added = wanted[position:]
    for index, message in enumerate(added):
        if message.id in removed:
            if not isinstance(message, ToolMessage):
                return None
            added[index] = message.model_copy(update={"id": f"{message.id}:again"})
    return edits + added, wanted[:position] + added


def _gives(
    channel: BaseChannel[Any, Any, Any], stored: list[BaseMessage], update: Any, wanted: list[BaseMessage]
) -> bool:
    trial = channel.from_checkpoint(list(stored))
    try:
        trial.update([update])
        given = trial.get()
    except Exception:  # noqa: BLE001 - the reducer is the graph's own code, and this update perhaps not for it
        return False
    return isinstance(given, list) and _same(given, wanted)


def _carried(graph: _Graph, state: StateSnapshot) -> dict[str, Any]:
    """What finished tasks of an unfinished step wrote to other channels, as an update that keeps it."""
    written = {key for task in state.tasks if isinstance(task.result, dict) for key in task.result}
    values = _values(state)
    carried: dict[str, Any] = {}
    for key in sorted(written - {MESSAGES}):
        channel = graph.channels.get(key)
        if isinstance(channel, LastValue) and key in values:
            carried[key] = values[key]
        elif isinstance(channel, BinaryOperatorAggregate | DeltaChannel) and key in values:
            carried[key] = Overwrite(values[key])
    return carried


def _writing_node(graph: _Graph, keys: Collection[str]) -> str:
    """Under which node's name ``keys`` can be written without running code of the graph."""
    builder = graph.builder
    # START writes only what is in the input schema, and drops the rest without a word.
    if not builder.branches.get(START) and set(keys) <= set(builder.schemas[builder.input_schema]):
        return START
    # A node that others wait for together would leave its own mark with the one that waits for them.
    joined = {name for starts, _ in builder.waiting_edges for name in starts}
    plain = (name for name in builder.nodes if not builder.branches.get(name) and name not in joined)
    return next(plain, START)
