"""Whether an interrupted turn may go on by itself: only if no tool runs twice that must not.

The log of a lost run does not prove that a tool never began: it may have begun after the last commit. The
checkpoint does, since a step begins only when the step before it is saved. So the pending step of the
checkpoint is all that may have run and will run again.
"""

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage

from runs import agents
from runs.foundation.database import in_thread
from runs.foundation.values import lookup_key
from runs.memory import state_messages
from runs.memory.checkpoints import Checkpoints
from runs.models import Run, RunEvent, ToolCall
from runs.states import Effect, EventType, InterruptReason


async def is_safe(run: Run, checkpoints: Checkpoints) -> bool:
    """Whether what this interrupted run has pending is an LLM call, or only calls of idempotent tools.

    A call that is known not to have begun is no obstacle either. Raises AgentMismatch, and whatever the
    graph's reducers raise.
    """
    agent = agents.load(run.session.agent)
    harmless = agent.policy.idempotent_tools
    known = await in_thread(_known_calls, run)
    if any(call.effect == Effect.UNKNOWN and call.name not in harmless for call in known.values()):
        return False
    log_is_complete = await in_thread(_left_in_good_order, run)
    graph = agent.graph_on(checkpoints.reader())
    state = await graph.aget_state({"configurable": {"thread_id": str(run.session_id)}}, subgraphs=True)
    inside = [message for _, messages in state_messages.messages_of_subgraphs(state) for message in messages]
    for call_id, name in _unanswered([*state_messages.messages_of(state), *inside]).items():
        call = known.get(lookup_key(call_id))
        never_began = log_is_complete and call is not None and call.effect == Effect.NONE
        if name not in harmless and not never_began:
            return False
    return True


def _known_calls(run: Run) -> dict[str, ToolCall]:
    """The calls of the turn by their keys, each as the last run that had it left it."""
    turn = ToolCall.objects.filter(run__session=run.session_id, run__message_id=run.message_id)
    return {call.call_id: call for call in turn.order_by("run__position")}


def _left_in_good_order(run: Run) -> bool:
    """Whether all that the run did was logged before it ended."""
    ended = RunEvent.objects.filter(run=run, type=EventType.RUN_INTERRUPTED).first()
    return ended is not None and ended.data.get("reason") == InterruptReason.SHUTDOWN


def _unanswered(messages: list[Any]) -> dict[str, str]:
    """Names of the tools that were called and have given no result, by the ids of the calls."""
    answered = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    asked = (call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls)
    return {call["id"] or "": call["name"] for call in asked if call["id"] not in answered}
