"""The agents that are measured. Both sides run these very graphs; the user's message says what to answer.

``say 400`` is answered with 400 tokens as fast as they can be taken, ``say 400 at 50`` with 50 a second, each
token being the monotonic time at which it was due to be said. ``call 20 in a row`` and ``call 20 together``
make so many calls of a tool that does nothing, each in a round of its own or all in one.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import StateGraph

from tests.fakes.graphs import agent_graph, fan_out_graph, plain_graph, served_model

_ORDER = re.compile(r"say (\d+)(?: at (\d+))?$")
_CALLS = re.compile(r"call (\d+) (in a row|together)$")


def order(tokens: int, per_second: int | None = None) -> str:
    """The user's message that asks for an answer of so many tokens."""
    return f"say {tokens}" if per_second is None else f"say {tokens} at {per_second}"


class TokenModel(BaseChatModel):
    """Says what it is told to, at next to no cost of its own.

    At a rate it keeps to its schedule as a provider elsewhere would: a consumer that lags is not waited for.
    """

    @property
    def _llm_type(self) -> str:
        return "tokens"

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        found = _ORDER.match(str(messages[-1].text))
        assert found, messages[-1]
        tokens, rate = int(found[1]), int(found[2] or 0)
        due = monotonic()
        for _ in range(tokens):
            said = "token "
            if rate:
                due += 1 / rate
                said = f"{due:.6f} "
            # Zero as well: a model over the network lets others run between its tokens, too.
            await asyncio.sleep(max(0, due - monotonic()) if rate else 0)
            yield ChatGenerationChunk(message=AIMessageChunk(content=said))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return asyncio.run(agenerate_from_stream(self._astream(messages, stop, **kwargs)))


class CallingModel(TokenModel):
    """Calls a tool as often as it is told to, and then says one token."""

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        last = max(place for place, message in enumerate(messages) if message.type == "human")
        found = _CALLS.match(str(messages[last].text))
        assert found, messages[last]
        left = int(found[1]) - sum(message.type == "tool" for message in messages[last:])
        calls = [
            tool_call_chunk(name="nothing", args="{}", id=str(uuid4()), index=place)
            for place in range(min(left, 1) if found[2] == "in a row" else left)
        ]
        await asyncio.sleep(0)
        yield ChatGenerationChunk(
            message=AIMessageChunk(content="" if calls else "token", tool_call_chunks=calls)
        )


@tool
async def nothing() -> str:
    """Do nothing."""
    return ""


def build_lean() -> StateGraph[Any]:
    """The least a chat agent is: one node that calls the model."""
    return fan_out_graph(TokenModel())


def build_default() -> StateGraph[Any]:
    """The product's own agent."""
    return agent_graph(TokenModel())


def build_http() -> StateGraph[Any]:
    """The lean agent with a model over HTTP, the provider that ``OPENAI_BASE_URL`` names."""
    return fan_out_graph(served_model())


def build_tools() -> StateGraph[Any]:
    """LangGraph's stock agent with a tool, all calls of a message in one step."""
    return plain_graph(CallingModel(), [nothing])


def build_ungated() -> StateGraph[Any]:
    """The same, but the engine takes its ToolNode for one that has its gate."""
    graph = build_tools()
    node: Any = graph.nodes["tools"].runnable
    node._gate = True
    return graph


AGENTS = {
    "lean": "tests.benchmarks.agents:build_lean",
    "default": "tests.benchmarks.agents:build_default",
    "http": "tests.benchmarks.agents:build_http",
    "tools": "tests.benchmarks.agents:build_tools",
    "ungated": "tests.benchmarks.agents:build_ungated",
}
