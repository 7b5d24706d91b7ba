"""Whether an interrupted turn may go on by itself: only if no tool runs twice that must not.

The start of a ToolNode's call is committed before it begins, and what it has given is given again. Of a tool
that runs otherwise the log of a lost run does not prove that it never began. Then only the checkpoint tells:
what has a result there is not run again.
"""

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage

from runs import agents
from runs.foundation.database import in_thread
from runs.foundation.values import lookup_key
from runs.memory import root_state, state_messages
from runs.memory.checkpoints import Checkpoints
from runs.models import Run, ToolCall
from runs.states import Effect


async def is_safe(run: Run, checkpoints: Checkpoints) -> bool:
    """Whether going on with this interrupted run begins no tool a second time, but for idempotent ones.

    Raises AgentMismatch, and whatever the graph's reducers raise.
    """
    agent = agents.load(run.session.agent)
    harmless = agent.policy.idempotent_tools
    known = await in_thread(_known_calls, run)
    graph = agent.graph_on(checkpoints.reader())
    state = (await root_state.read(graph, root_state.root_of(run.session_id), subgraphs=True)).state
    inside = [message for _, messages in state_messages.messages_of_subgraphs(state) for message in messages]
    asked, answered = _calls_of([*state_messages.messages_of(state), *inside])
    for key, call in known.items():
        # A step that starts over is given what its ToolNode's calls have given.
        is_over = call.effect == Effect.NONE or call.start_is_logged or key in answered
        if call.name not in harmless and (call.effect == Effect.UNKNOWN or not is_over):
            return False
    for key, name in asked.items():
        if name in harmless or key in answered:
            continue
        # The log may lack a message that the checkpoint has. A ToolNode's call of it has not begun then.
        if key not in known and name not in agent.gated_tools:
            return False
    return True


def _known_calls(run: Run) -> dict[str, ToolCall]:
    """The calls of the turn by their keys, each as the last run that had it left it."""
    turn = ToolCall.objects.filter(run__session=run.session_id, run__message_id=run.message_id)
    return {call.call_id: call for call in turn.order_by("run__position")}


def _calls_of(messages: list[Any]) -> tuple[dict[str, str], set[str]]:
    """The names of the tools that were called, by the keys of the calls; and the keys that have a result."""
    answered = {lookup_key(message.tool_call_id) for message in messages if isinstance(message, ToolMessage)}
    asked = (call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls)
    return {lookup_key(call["id"] or ""): call["name"] for call in asked}, answered
