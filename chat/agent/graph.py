"""The default agent: a model that calls tools until it has an answer.

    llm_call ──► tool_node (one task for each call) ──► llm_call
        ├──────► give_up    after too many messages whose calls could not be read
        └──────► END        with an answer

Each tool call is a task of its own, so that those that have finished survive a cancel or a crash.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypedDict, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage, ToolMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send

from chat.agent import answers
from chat.agent.characters import replace_unstorable
from chat.agent.model import chat_model
from chat.agent.titles import title_of_turn
from chat.agent.tools import IDEMPOTENT, TOOLS
from runs.agents import agent
from runs.token import cancel_token

PROMPT = """\
You are a helpful assistant in a chat. Answer in the user's language, in Markdown, and no longer than the
question asks for. Use the tools when they help, and say so when one of them failed or was stopped: a tool
that was stopped may have done part of its work.
"""
MAX_BROKEN_ROUNDS = 3  # messages in a row with nothing but broken calls
MAX_ERROR_CHARACTERS = 2_000

_Execute = Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]


class State(TypedDict):
    """What a session's checkpoint holds; messages are stored as deltas, which keeps long sessions small."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


class TooManyBrokenCalls(Exception):
    """Calls of the model were broken in too many rounds in a row."""

    error_code = "tool"
    user_message = "The model asked for tools in a form that could not be read, several times in a row."


class EmptyAnswer(Exception):
    """The model gave nothing, and nothing again when it was asked once more."""

    error_code = "provider"
    user_message = "The model gave an empty answer, twice."


@agent(
    title="Assistant",
    description="Answers questions and uses a few tools.",
    idempotent_tools=IDEMPOTENT,
    generate_title=title_of_turn,
)
def build_graph() -> StateGraph[Any]:
    """The agent with the configured model and its tools."""
    return build(chat_model(), TOOLS)


def build(model: BaseChatModel, tools: Sequence[BaseTool]) -> StateGraph[Any]:
    """The agent's graph with any model and tools, not compiled."""
    bound: Runnable[LanguageModelInput, AIMessage] = model.bind_tools(list(tools)) if tools else model
    known = frozenset(tool.name for tool in tools)

    async def llm_call(state: State) -> dict[str, list[AnyMessage]]:
        """One answer of the model and, for each call in it that is broken, a result that says so."""
        messages = [SystemMessage(PROMPT), *state["messages"]]
        taken = _ids_of_calls(state["messages"])
        for _ in range(2):
            answer = answers.read(await answers.stream(bound, messages), known, taken)
            if answer.message.text.strip() or answer.message.tool_calls:
                return {"messages": [answer.message, *answer.errors]}
        raise EmptyAnswer

    graph = StateGraph(State)
    graph.add_node("llm_call", llm_call)
    graph.add_node("tool_node", ToolNode(tools, handle_tool_errors=_explain, awrap_tool_call=_call_tool))
    graph.add_node("give_up", _give_up)
    graph.add_edge(START, "llm_call")
    graph.add_conditional_edges("llm_call", _next, ["tool_node", "llm_call", "give_up", END])
    graph.add_edge("tool_node", "llm_call")
    return graph


def _ids_of_calls(messages: Sequence[AnyMessage]) -> set[str]:
    return {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}


def _explain(error: Exception) -> str:
    """What the model is told of a tool that raised."""
    return f"The tool failed: {error or type(error).__name__}"[:MAX_ERROR_CHARACTERS]


async def _call_tool(request: ToolCallRequest, execute: _Execute) -> ToolMessage | Command[Any]:
    """What a tool answers, in words that can be stored and sent to a model."""
    answer = await _contain_cancellation(request, execute)
    return cast("ToolMessage | Command[Any]", replace_unstorable(answer))


async def _contain_cancellation(request: ToolCallRequest, execute: _Execute) -> ToolMessage | Command[Any]:
    """A CancelledError that a tool raises by itself is that tool's failure; one that cancels us goes on."""
    try:
        return await execute(request)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if cancel_token().cancelled or (task is not None and task.cancelling()):
            raise
        call = request.tool_call
        return ToolMessage(
            "The tool failed: it cancelled itself.",
            tool_call_id=call["id"],
            name=call["name"],
            status="error",
        )


def _next(state: State) -> list[Send] | str:
    """Where to go from an answer: to the calls without a result, to another try, or to the end."""
    messages = state["messages"]
    asking = max(index for index, message in enumerate(messages) if isinstance(message, AIMessage))
    message = cast("AIMessage", messages[asking])
    if not message.tool_calls:
        return END
    answered = _ids_of_calls(messages[asking:])
    to_run = [call for call in message.tool_calls if call["id"] not in answered]
    if to_run:
        return [Send("tool_node", [{**call, "type": "tool_call"}]) for call in to_run]
    return "give_up" if _broken_rounds(messages) >= MAX_BROKEN_ROUNDS else "llm_call"


def _broken_rounds(messages: Sequence[AnyMessage]) -> int:
    """How many messages in a row, counted from the end, had nothing but broken calls."""
    rounds = 0
    for message in reversed(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            rounds += 1
        elif not answers.is_broken_call(message):
            break
    return rounds


async def _give_up(state: State) -> None:
    """A step of its own, so that the last broken round is in the checkpoint when the run fails."""
    raise TooManyBrokenCalls
