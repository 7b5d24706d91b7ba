"""What the checkpoint of a session holds, for operators who look for a fault in it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from runs import agents
from runs.foundation.database import in_thread
from runs.foundation.masking import masked
from runs.foundation.values import clean, text_of, to_json
from runs.memory import state_messages
from runs.memory.checkpoints import process_checkpoints
from runs.memory.normalise import HistoryChanges, engine_mark, pair_calls_with_results
from runs.models import Session


@dataclass(frozen=True, slots=True)
class SavedCall:
    """A tool call of a saved message."""

    id: str
    name: str
    args: Any
    is_orphan: bool  # without a result in the checkpoint


@dataclass(frozen=True, slots=True)
class SavedMessage:
    """A message as the graph has it."""

    id: str
    role: str  # LangChain's type: human, ai, tool, system
    text: str
    mark: str | None  # the status in the engine's mark, if the engine made or cut the message
    calls: list[SavedCall]
    answers: str | None  # the id of the call whose result it is


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint: its messages, the pending nodes, and whether a provider would accept the messages."""

    messages: list[SavedMessage]
    pending: list[str]  # nodes of the unfinished step
    orphans: list[SavedCall]
    faults: list[str] = field(default_factory=list)  # why a provider would refuse it; a phrase each

    @property
    def is_sendable(self) -> bool:
        return not self.faults


async def inspect(session: Session) -> Inspection:
    """Read the checkpoint of a session. Raises what the reducers of its graph raise."""
    agent = await in_thread(agents.for_reading, session.agent)
    async with process_checkpoints() as checkpoints:
        graph = agent.graph_on(checkpoints.reader())
        state = await graph.aget_state({"configurable": {"thread_id": str(session.id)}})
    return examine(state_messages.messages_of(state), [task.name for task in state.tasks])


def examine(messages: Sequence[BaseMessage], pending: Sequence[str] = ()) -> Inspection:
    """Inspect the messages of a checkpoint."""
    results = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    shown = [_message(message, results) for message in messages]
    orphans = [call for message in shown for call in message.calls if call.is_orphan]
    return Inspection(shown, list(pending), orphans, _faults(messages))


def _message(message: BaseMessage, results: set[str]) -> SavedMessage:
    asked = message.tool_calls if isinstance(message, AIMessage) else []
    calls = [
        SavedCall(call["id"] or "", clean(call["name"]), to_json(call["args"]), call["id"] not in results)
        for call in asked
    ]
    answers = message.tool_call_id if isinstance(message, ToolMessage) else None
    text = clean(text_of(message.content))
    if isinstance(message, ToolMessage) and message.status == "error":
        text = masked(text)
    return SavedMessage(message.id or "", message.type, text, engine_mark(message), calls, answers)


def _faults(messages: Sequence[BaseMessage]) -> list[str]:
    """What ``runs.memory.normalise`` would change; empty if it would return the same messages."""
    changes = HistoryChanges()
    normal = pair_calls_with_results(messages, (), changes)
    if len(normal) == len(messages) and all(a is b for a, b in zip(normal, messages, strict=True)):
        return []
    counted = [
        (len(changes.made_up), "call without a result", "calls without a result"),
        (changes.dropped_calls, "broken call", "broken calls"),
        (changes.dropped_messages, "empty or unasked message", "empty or unasked messages"),
        (len(changes.notes), "turn without an answer", "turns without an answer"),
    ]
    faults = [f"{count} {one if count == 1 else many}" for count, one, many in counted if count]
    return faults or ["results that are not in their place"]
