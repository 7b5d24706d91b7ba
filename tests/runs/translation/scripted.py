"""Models that say what a test wrote down, tools of three kinds, and graphs of both."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCallChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

Round = Sequence[AIMessageChunk | BaseException | asyncio.Event]


class ScriptedModel(BaseChatModel):
    """Streams the chunks of one round per call; raises an exception, and waits for an event, in its place."""

    rounds: list[Any]
    streaming_supported: bool = True
    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _next(self) -> Round:
        self.calls += 1
        return self.rounds.pop(0)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        whole: AIMessageChunk | None = None
        for chunk in self._next():
            if isinstance(chunk, BaseException):
                raise chunk
            assert isinstance(chunk, AIMessageChunk)
            whole = chunk if whole is None else whole + chunk
        assert whole is not None
        message = AIMessage(
            whole.content,
            id=whole.id,
            tool_calls=whole.tool_calls,
            invalid_tool_calls=whole.invalid_tool_calls,
        )
        message.usage_metadata = whole.usage_metadata
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        if not self.streaming_supported:
            raise NotImplementedError
        for chunk in self._next():
            if isinstance(chunk, BaseException):
                raise chunk
            assert isinstance(chunk, AIMessageChunk)
            yield ChatGenerationChunk(message=chunk.model_copy())

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._next():
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
                continue
            await asyncio.sleep(0)
            if isinstance(chunk, BaseException):
                raise chunk
            yield ChatGenerationChunk(message=chunk.model_copy())


class WholeModel(ScriptedModel):
    """The same, for a provider that cannot stream."""

    _stream = BaseChatModel._stream
    _astream = BaseChatModel._astream


def words(*pieces: str, usage: tuple[int, int] | None = (10, 5)) -> list[AIMessageChunk]:
    chunks = [AIMessageChunk(content=piece) for piece in pieces]
    return [*chunks, report(*usage)] if usage else chunks


def report(prompt: int, output: int, text: str = "") -> AIMessageChunk:
    usage = UsageMetadata(input_tokens=prompt, output_tokens=output, total_tokens=prompt + output)
    return AIMessageChunk(content=text, usage_metadata=usage)


def spelled(*calls: tuple[str, str, str], usage: tuple[int, int] | None = (10, 5)) -> list[AIMessageChunk]:
    """Tool calls ``(id, name, arguments as text)``, each spelled out in four pieces."""
    chunks = []
    for index, (call_id, name, args) in enumerate(calls):
        half = len(args) // 2
        pieces = [
            (call_id, name[:2], ""),
            (None, name[2:], ""),
            (None, None, args[:half]),
            (None, None, args[half:]),
        ]
        for piece_id, piece_name, piece_args in pieces:
            piece = ToolCallChunk(
                type="tool_call_chunk", id=piece_id, name=piece_name, args=piece_args, index=index
            )
            chunks.append(AIMessageChunk(content="", tool_call_chunks=[piece]))
    return [*chunks, report(*usage)] if usage else chunks


@tool
async def echo(text: str) -> str:
    """Say it again."""
    return f"echo {text}"


@tool
async def boom(text: str) -> str:
    """Fail."""
    raise ValueError(f"boom {text}")


@tool
async def ask(text: str) -> str:
    """Ask the user."""
    return f"they said {interrupt({'question': text})}"


def hanging(begun: asyncio.Event) -> Any:
    """A tool that never returns, and tells when it has begun."""

    @tool
    async def hang(text: str) -> str:
        """Never return."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    return hang


def agent(model: BaseChatModel, tools: Sequence[Any] = (echo, boom, ask), **tool_node: Any) -> StateGraph:
    """A model and its tools, in turns."""

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    tool_node.setdefault("handle_tool_errors", True)
    graph = StateGraph(MessagesState)
    graph.add_node("agent", call_model)
    graph.add_node("tools", ToolNode(list(tools), **tool_node))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", route, ["tools", END])
    graph.add_edge("tools", "agent")
    return graph


def fan_out(graph: StateGraph) -> None:
    """Let each tool call be a task of its own."""

    def send(state: MessagesState) -> Any:
        return [Send("tools", [call]) for call in getattr(state["messages"][-1], "tool_calls", [])] or END

    graph.branches["agent"].clear()
    graph.add_conditional_edges("agent", send, ["tools", END])
