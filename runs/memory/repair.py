"""Bring the messages of a session's checkpoint into the normal form of ``runs.memory.normalise``.

It works for any graph, without knowing its nodes:

- Messages are written with ``aupdate_state(..., as_node=START)``, like the user's input. Then
  ``aupdate_state(None, as_node=END)`` clears what is pending, of that update and of the cut turn.
- A state that is read without a checkpoint id shows the writes of finished tasks of an unfinished step. An
  update starts from the checkpoint alone and drops these writes. So one update writes all of it: the messages
  and the other writes of the finished tasks.
- The reducer of the channel is the graph's own code. So updates are tried on a copy of the channel, and the
  smallest one that works is used. An update that appends costs only what it appends. The whole list is
  written only when something in old history is missing.
- With a conditional edge from START, the graph's routing function would run on our update. Then the name of
  another node without conditional edges is used: the update runs the node's edges, never the node.
- A reducer may have refused what a task wrote. Then each read and each update would apply that write again,
  and fail. A copy of the checkpoint has no such writes, and the repair goes on from there.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
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
from langgraph.pregel import Pregel
from langgraph.types import Overwrite, StateSnapshot

from runs.log import transcript
from runs.log.transcript import Transcript
from runs.memory import brought_messages, root_state, state_messages
from runs.memory.checkpoints.saver import FencedSaver
from runs.memory.normalise import HistoryChanges, drop_turns, normalise, pair_calls_with_results
from runs.memory.root_state import has_begun, root_of
from runs.memory.state_messages import MESSAGES

_Graph: TypeAlias = CompiledStateGraph[Any, Any, Any, Any]

# One is enough, unless writes outside all tasks are pending or clearing makes a deferred node ready.
_ATTEMPTS = 4


class RepairFailed(RuntimeError):
    """The checkpoint was written, and does not have the wanted messages."""


@dataclass(slots=True)
class RepairReport:
    """What a repair did."""

    changes: HistoryChanges = field(default_factory=HistoryChanges)
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
    brought: Sequence[BaseMessage] = (),
) -> RepairReport:
    """Bring all messages of this session into normal form. Nothing is pending afterwards.

    ``graph`` must write through the saver of the execution that owns the session now.
    ``transcripts``: the turns that are not repaired yet, by position.
    ``order``: the user message ids of all turns, by position; by default there are no other turns.
    ``drop``: the user message ids of retried turns, which are removed.
    ``brought``: messages that the session begins with; they are added unless they are there.

    A second time changes and writes nothing. Raises RepairFailed, and what the saver raises.
    """
    order = order or [turn.user.id for turn in transcripts]
    report = RepairReport()

    def with_results(state: StateSnapshot, changes: HistoryChanges) -> list[BaseMessage]:
        return pair_calls_with_results(
            drop_turns(state_messages.messages_of(state), drop, order, changes), transcripts, changes
        )

    thread = {"thread_id": str(session_id)}
    # A subgraph with its own memory has the cut calls there, too. It is repaired first. What it then has of
    # the turn is copied as it is, since the subgraph gets it back with the next input.
    remembered: list[BaseMessage] = []
    async for namespace, subgraph in graph.aget_subgraphs(recurse=True):
        if isinstance(subgraph, CompiledStateGraph) and subgraph.checkpointer is True:
            own: RunnableConfig = {"configurable": thread | {"checkpoint_ns": namespace}}
            await _repair_thread(graph, subgraph, own, with_results, report)
            remembered += state_messages.messages_of((await root_state.read(graph, own)).state)

    conversation = set(_nested(graph))
    begun: list[str | None] = []  # as it was before anything is written

    def with_turns(state: StateSnapshot, changes: HistoryChanges) -> list[BaseMessage]:
        if not begun:
            begun.append(_begun(state, transcripts))
            if isinstance(graph.checkpointer, FencedSaver):
                graph.checkpointer.begun = begun[0]
        open_steps = {name for task in state.tasks for name in (task.name, f"{task.name}:{task.id}")}
        messages = state_messages.messages_of(state)
        return normalise(
            [*brought_messages.to_prepend(brought, messages), *messages],
            transcripts,
            order=order,
            drop=drop,
            begun=begun[0],
            is_step_open=lambda message: (message.task or _step_of(message)) in open_steps,
            is_of_conversation=lambda message: _path(message) in conversation,
            from_subgraphs=[
                *remembered,
                *(message for _, inner in state_messages.messages_of_subgraphs(state) for message in inner),
            ],
            changes=changes,
        )

    await _repair_thread(graph, graph, root_of(session_id), with_turns, report)
    return report


def _begun(state: StateSnapshot, transcripts: Sequence[Transcript]) -> str | None:
    """The turn that the graph has begun last; of checkpoints of older versions, if it is among these."""
    metadata: Any = state.metadata or {}
    if "begun" in metadata and metadata.get("source") != "input":
        found: str | None = metadata["begun"]
        return found
    return next((turn.user.id for turn in transcripts if has_begun(state, turn.user.id)), None)


async def _repair_thread(
    root: _Graph,
    graph: _Graph,
    config: RunnableConfig,
    form: Callable[[StateSnapshot, HistoryChanges], list[BaseMessage]],
    report: RepairReport,
) -> None:
    """Write the messages that ``form`` gives for the state at ``config``, and leave nothing pending.

    ``root`` reads and writes. ``graph``, whose state it is, may be a subgraph of it with its own memory.
    """
    channel = graph.channels.get(MESSAGES)
    for attempt in range(_ATTEMPTS):
        saved = await root_state.read(root, config, subgraphs=True)
        state = saved.state
        # An update does not start from these.
        has_writes = not saved.is_refused and any(task.result for task in state.tasks)
        stored = state_messages.messages_of(await root.aget_state(state.config) if has_writes else state)
        changes = report.changes if attempt == 0 else HistoryChanges()
        wanted = form(state, changes) if isinstance(channel, BaseChannel) else stored
        pending, is_right = _pending(state), _same(stored, wanted)
        if not pending and is_right:
            return
        if attempt == 0:
            report.cleared += pending
        values = _other_writes(graph, state)
        if isinstance(channel, BaseChannel) and not is_right:
            values[MESSAGES], rewrites = _update(channel, stored, wanted)
            report.written = True
            report.rewritten |= rewrites
        if saved.is_refused:
            await root.aupdate_state(state.config, None, as_node="__copy__")  # without these writes
        if values:
            await root.aupdate_state(config, values, as_node=_writing_node(graph, values))
        await root.aupdate_state(config, None, as_node=END)
    raise RepairFailed(f"The checkpoint of {config['configurable']} does not take its repair.")


def _pending(state: StateSnapshot) -> tuple[str, ...]:
    """The nodes of the unfinished step, with those that have finished in it."""
    return tuple(task.name for task in state.tasks)


def _same(some: Sequence[BaseMessage], others: Sequence[BaseMessage]) -> bool:
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(one: BaseMessage, other: BaseMessage) -> bool:
    """Whether all that is sent or shown is equal. A tool's artifact may change when it is stored."""
    return one is other or _essence(one) == _essence(other)


def _essence(message: BaseMessage) -> tuple[Any, ...]:
    calls = (message.tool_calls, message.invalid_tool_calls) if isinstance(message, AIMessage) else ()
    result = (message.tool_call_id, message.status) if isinstance(message, ToolMessage) else ()
    return (message.type, message.id, message.content, message.additional_kwargs, *calls, *result)


def _step_of(message: transcript.Message) -> str:
    """The node of the root graph in which this message was made, at whatever depth."""
    path = _path(message)
    return path[0] if path else message.node


def _path(message: transcript.Message) -> tuple[str, ...]:
    """The nodes that lead to the graph which made this message; empty for the root graph."""
    namespace = message.namespace or ()
    if isinstance(namespace, str):
        namespace = namespace.split("|")
    return tuple(str(part).split(":")[0] for part in namespace)


def _nested(graph: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of the graph and of all subgraphs that are nodes."""
    yield path
    for name, node in graph.nodes.items():
        if isinstance(node.bound, Pregel):
            yield from _nested(node.bound, (*path, name))


# Updates


def _update(
    channel: BaseChannel[Any, Any, Any], stored: list[BaseMessage], wanted: list[BaseMessage]
) -> tuple[Any, bool]:
    """The smallest update that makes ``wanted`` of ``stored``, and whether it writes all messages."""
    edits = _edits(stored, wanted)
    if edits is not None and _results_in(channel, stored, *edits):
        return edits[0], False
    rewrite = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *wanted]
    # The last two are for reducers that do not know removals, and for channels without a reducer.
    for update in (rewrite, Overwrite(wanted), wanted):
        if _results_in(channel, stored, update, wanted):
            return update, True
    raise RepairFailed(f"No update of the channel {MESSAGES!r} gives the history that is needed.")


def _edits(
    stored: list[BaseMessage], wanted: list[BaseMessage]
) -> tuple[list[BaseMessage], list[BaseMessage]] | None:
    """(update, resulting messages), with replacements, removals and additions at the end. None if these are
    not enough.

    Results that stand too late are removed and added again with new ids. It is one update, so nothing is lost
    when the process dies. Nothing refers to a result by its own id.
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


def _results_in(
    channel: BaseChannel[Any, Any, Any], stored: list[BaseMessage], update: Any, wanted: list[BaseMessage]
) -> bool:
    trial = channel.from_checkpoint(list(stored))
    try:
        trial.update([update])
        given = trial.get()
    except Exception:  # noqa: BLE001 - the reducer is the graph's own code, and this update perhaps not for it
        return False
    return isinstance(given, list) and _same(given, wanted)


def _other_writes(graph: _Graph, state: StateSnapshot) -> dict[str, Any]:
    """An update that keeps what finished tasks of the unfinished step wrote to other channels."""
    written = {key for task in state.tasks if isinstance(task.result, dict) for key in task.result}
    values = state.values if isinstance(state.values, dict) else {}
    carried: dict[str, Any] = {}
    for key in sorted(written - {MESSAGES}):
        channel = graph.channels.get(key)
        if isinstance(channel, LastValue) and key in values:
            carried[key] = values[key]
        elif isinstance(channel, BinaryOperatorAggregate | DeltaChannel) and key in values:
            carried[key] = Overwrite(values[key])
    return carried


def _writing_node(graph: _Graph, keys: Collection[str]) -> str:
    """The node under whose name ``keys`` can be written without running code of the graph."""
    builder = graph.builder
    # START writes only keys of the input schema, and drops the others silently.
    if not builder.branches.get(START) and set(keys) <= set(builder.schemas[builder.input_schema]):
        return START
    # A node of a join would mark itself as done for the node that waits.
    joined = {name for starts, _ in builder.waiting_edges for name in starts}
    usable = (name for name in builder.nodes if not builder.branches.get(name) and name not in joined)
    return next(usable, START)
