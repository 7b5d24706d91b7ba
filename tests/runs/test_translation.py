"""Real LangGraph graphs, translated chunk by chunk into the events of the log."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt, NodeCancelledError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.types import Command, RetryPolicy, Send, StreamWriter, interrupt

from runs.states import EventType, RunStatus
from runs.translation import Known, KnownCall, Translator

RUN = "11111111-1111-1111-1111-111111111111"
MODES = ["messages", "updates", "tools", "custom"]


class Recorder:
    """An emitter that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.threads: set[int] = set()

    def emit(self, event: EventType, data: dict[str, Any], /) -> None:
        json.dumps(data, allow_nan=False).encode()  # storable: plain JSON that can be encoded
        self.events.append((str(event), data))

    def count(self, **deltas: int) -> None:
        self.threads.add(threading.get_ident())
        self.counts.update(deltas)

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [data for event, data in self.events if event in types]

    @property
    def types(self) -> list[str]:
        """The event types, the deltas of one message as one."""
        types: list[str] = []
        for event, _ in self.events:
            if event != "message.delta" or types[-1:] != ["message.delta"]:
                types.append(event)
        return types

    @property
    def texts(self) -> list[str]:
        return [data["text"] for data in self.of("message.completed")]


ENDS = ("tool.completed", "tool.failed", "tool.cancelled")


def assert_log_is_sound(recorder: Recorder, known: Known | None = None) -> None:
    """What holds for every closed execution, whatever happened in it."""
    known = known or Known()
    texts: dict[str, str] = {}
    holders = {call.id: call.message for call in known.calls}
    started = {call.id for call in known.calls if call.started and not call.ended}
    owed = {call.id for call in known.calls if not call.ended}
    messages = results = 0
    for event, data in recorder.events:
        if event == "message.started":
            assert data["message"] not in texts
            texts[data["message"]] = ""
        elif event == "message.delta":
            assert data["text"]
            texts[data["message"]] += data["text"]
        elif event == "message.completed":
            messages += 1
            if not data["message"].endswith(":note"):
                assert data["text"] == texts[data["message"]]
            for call in data["tool_calls"]:
                assert call["id"] not in owed
                owed.add(call["id"])
                holders[call["id"]] = data["message"]
        elif event == "tool.started":
            assert data["tool_call"] not in started
            assert data["message"] == holders.get(data["tool_call"])
            started.add(data["tool_call"])
            owed.add(data["tool_call"])
        elif event in ENDS:
            call = data["tool_call"]
            assert call in owed
            owed.discard(call)
            if event == "tool.completed":
                assert call in started
            if event == "tool.cancelled":
                assert data["effect"] == ("unknown" if call in started else "none")
            started.discard(call)
            results += holders.get(call) is not None
    assert not started
    assert not owed
    assert len(recorder.of("message.completed")) == len(texts)
    counts = recorder.counts
    assert counts["message_count"] == messages + results
    assert counts["tool_calls"] == len(recorder.of("tool.started"))
    assert counts["open_input_tokens"] == 0
    assert counts["open_output_tokens"] == 0


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
            whole.content, tool_calls=whole.tool_calls, invalid_tool_calls=whole.invalid_tool_calls
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

    _stream = BaseChatModel._stream  # type: ignore[assignment]
    _astream = BaseChatModel._astream  # type: ignore[assignment]


def words(*pieces: str, usage: tuple[int, int] | None = (10, 5)) -> list[AIMessageChunk]:
    chunks = [AIMessageChunk(piece) for piece in pieces]
    return [*chunks, report(*usage)] if usage else chunks


def report(prompt: int, output: int, text: str = "") -> AIMessageChunk:
    usage = {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}
    return AIMessageChunk(text, usage_metadata=usage)


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
            piece = {"type": "tool_call_chunk", "id": piece_id, "name": piece_name, "args": piece_args}
            chunks.append(AIMessageChunk("", tool_call_chunks=[{**piece, "index": index}]))
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


class Execution:
    """One execution of a graph, as the engine does it."""

    def __init__(self, graph: StateGraph, saver: InMemorySaver | None = None, **options: Any) -> None:
        self.saver = saver or InMemorySaver()
        self.graph = graph.compile(checkpointer=self.saver)
        self.recorder = Recorder()
        self.known = options.get("known")
        self.translator = Translator(self.recorder, run_id=RUN, **options)

    def stream(self, turn: Any = "hello", **config: Any) -> Any:
        """The graph's chunks, ``(namespace, mode, payload)``."""
        if isinstance(turn, str):
            turn = {"messages": [HumanMessage(turn)]}
        config = {"configurable": {"thread_id": "1"}, "callbacks": self.translator.callbacks, **config}
        return self.graph.astream(turn, config, stream_mode=MODES, subgraphs=True, durability="sync")

    async def run(
        self, turn: Any = "hello", status: RunStatus | None = RunStatus.COMPLETED, **config: Any
    ) -> Recorder:
        async for chunk in self.stream(turn, **config):
            self.translator.feed(*chunk)
        if self.translator.questions:
            status = RunStatus.WAITING
        if status is not None:
            self.close(status)
        return self.recorder

    async def messages(self) -> list[AnyMessage]:
        """The messages in the graph's state."""
        state = await self.graph.aget_state({"configurable": {"thread_id": "1"}})
        return state.values["messages"]

    def close(self, status: RunStatus) -> None:
        self.translator.close(status)
        if status != RunStatus.WAITING:
            assert_log_is_sound(self.recorder, self.known)

    async def cancel_when(self, reached: Callable[[Recorder], bool]) -> Recorder:
        """Start it, cancel its task once ``reached``, and close it as cancelled."""
        task = asyncio.create_task(self.run(status=None))
        async with asyncio.timeout(10):
            while not reached(self.recorder):
                assert not task.done(), task.result()
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.close(RunStatus.CANCELLED)
        return self.recorder


# A turn that goes well


async def test_a_streamed_answer_is_started_told_and_completed_with_its_usage():
    recorder = await Execution(agent(ScriptedModel(rounds=[words("Hel", "lo", " there")]))).run()
    assert recorder.types == ["message.started", "message.delta", "message.completed"]
    assert [delta["text"] for delta in recorder.of("message.delta")] == ["Hel", "lo", " there"]
    (completed,) = recorder.of("message.completed")
    assert completed == {
        "message": recorder.of("message.started")[0]["message"],
        "role": "assistant",
        "text": "Hello there",
        "tool_calls": [],
        "usage": {"input_tokens": 10, "output_tokens": 5},
        "status": "complete",
    }
    assert recorder.of("message.started")[0]["node"] == "agent"
    assert recorder.of("message.started")[0]["namespace"] == []
    assert recorder.counts["llm_calls"] == 1
    assert "tokens_estimated" not in recorder.counts


async def test_a_tool_call_is_asked_for_started_and_completed_in_order():
    model = ScriptedModel(
        rounds=[[*words("Wait.", usage=None), *spelled(("c1", "echo", '{"text": "x"}'))], words("Done")]
    )
    execution = Execution(agent(model))
    recorder = await execution.run()
    assert recorder.types == [
        *("message.started", "message.delta", "message.completed", "tool.started", "tool.completed"),
        *("message.started", "message.delta", "message.completed"),
    ]
    asked, answer = recorder.of("message.completed")
    assert asked["tool_calls"] == [{"id": "c1", "name": "echo", "args": {"text": "x"}}]
    (started,) = recorder.of("tool.started")
    assert started == {
        "tool_call": "c1",
        "message": asked["message"],
        "name": "echo",
        "args": {"text": "x"},
        "node": "tools",
        "namespace": [],
    }
    (completed,) = recorder.of("tool.completed")
    assert completed["result"] == "echo x"
    assert completed["duration_ms"] >= 0
    assert recorder.counts["message_count"] == 3
    assert (recorder.counts["input_tokens"], recorder.counts["output_tokens"]) == (20, 10)
    messages = await execution.messages()
    assert [message.id for message in messages if isinstance(message, AIMessage)] == [
        asked["message"],
        answer["message"],
    ]


async def test_a_model_that_cannot_stream_gives_one_whole_message():
    model = WholeModel(rounds=[spelled(("c1", "echo", '{"text": "x"}')), words("All", " at once")])
    recorder = await Execution(agent(model)).run()
    assert recorder.texts == ["", "All at once"]
    assert recorder.of("message.completed")[1]["usage"] == {"input_tokens": 10, "output_tokens": 5}
    assert recorder.counts["llm_calls"] == 2
    assert recorder.counts["input_tokens"] == 20


async def test_a_synchronous_node_calls_its_model_from_another_thread():
    threads = set()

    def call_model(state: MessagesState) -> dict[str, Any]:
        threads.add(threading.get_ident())
        return {"messages": [model.invoke(state["messages"])]}

    model = ScriptedModel(rounds=[words("Hel", "lo")])
    graph = StateGraph(MessagesState).add_node("agent", call_model).add_edge(START, "agent")
    recorder = await Execution(graph).run()
    assert threads != {threading.get_ident()}
    assert recorder.threads == {threading.get_ident()}
    assert recorder.texts == ["Hello"]
    assert recorder.counts["input_tokens"] == 10


async def test_messages_that_a_node_makes_by_hand_count_once_and_those_of_others_not_at_all():
    def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [SystemMessage("secret"), HumanMessage("me"), AIMessage("By hand", id="hand")]}

    def again(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("By hand", id="hand")]}

    graph = StateGraph(MessagesState).add_sequence([speak, again]).add_edge(START, "speak")
    recorder = await Execution(graph).run()
    assert recorder.texts == ["By hand"]
    assert recorder.counts == {"message_count": 1}


async def test_a_call_tagged_nostream_is_counted_and_its_message_told_when_the_node_returns_it():
    model = ScriptedModel(rounds=[words("Quiet", "ly")]).with_config(tags=["nostream"])
    recorder = await Execution(agent(model)).run()
    assert recorder.types == ["message.started", "message.delta", "message.completed"]
    assert recorder.texts == ["Quietly"]
    assert recorder.counts["llm_calls"] == 1
    assert recorder.counts["output_tokens"] == 5


async def test_only_text_blocks_are_text():
    blocks = [
        {"type": "thinking", "thinking": "hm", "index": 0},
        {"type": "text", "text": "The ", "index": 1},
        {"type": "text", "text": "answer", "index": 1},
        {"type": "tool_use", "id": "c1", "name": "echo", "input": {}, "index": 2},
    ]
    model = ScriptedModel(rounds=[[AIMessageChunk([block]) for block in blocks]])
    recorder = await Execution(agent(model)).run()
    assert recorder.texts == ["The answer"]


# Parallel and nested


async def test_parallel_models_and_fanned_out_tools_keep_their_messages_apart():
    models = {name: ScriptedModel(rounds=[words(*f"{name} says a lot".split(" "))]) for name in "abc"}

    def speaker(name: str) -> Callable[..., Any]:
        async def speak(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await models[name].ainvoke(state["messages"])]}

        return speak

    graph = StateGraph(MessagesState)
    for name in models:
        graph.add_node(name, speaker(name)).add_edge(START, name)
    recorder = await Execution(graph).run()
    assert sorted(recorder.texts) == ["asaysalot", "bsaysalot", "csaysalot"]
    by_message = {data["message"]: data["node"] for data in recorder.of("message.started")}
    assert all(
        data["text"].startswith(by_message[data["message"]]) for data in recorder.of("message.completed")
    )
    assert recorder.counts["input_tokens"] == 30


async def test_tool_calls_fanned_out_with_send_each_have_their_events():
    calls = spelled(
        ("c1", "echo", '{"text": "1"}'), ("c2", "boom", '{"text": "2"}'), ("c3", "echo", '{"text": "3"}')
    )
    graph = agent(ScriptedModel(rounds=[calls, words("Done")]))
    fan_out(graph)
    recorder = await Execution(graph).run()
    assert {data["tool_call"]: data["result"] for data in recorder.of("tool.completed")} == {
        "c1": "echo 1",
        "c3": "echo 3",
    }
    (failed,) = recorder.of("tool.failed")
    assert failed["tool_call"] == "c2"
    assert "boom 2" in failed["error"]
    assert recorder.counts["tool_calls"] == 3
    assert recorder.counts["message_count"] == 5


async def test_a_nested_graph_speaks_under_its_namespace_and_nothing_comes_twice():
    inner = agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}')), words("Done")])).compile()
    graph = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    recorder = await Execution(graph).run()
    assert recorder.texts == ["", "Done"]
    (started,) = recorder.of("tool.started")
    assert [part.split(":")[0] for part in started["namespace"]] == ["inner"]
    assert recorder.counts["message_count"] == 3
    assert recorder.counts["llm_calls"] == 2


async def test_a_model_inside_a_tool_is_counted():
    inner = ScriptedModel(rounds=[words("a summary")])

    @tool
    async def summarise(text: str) -> str:
        """Ask another model."""
        return str((await inner.ainvoke(text)).content)

    model = ScriptedModel(rounds=[spelled(("c1", "summarise", '{"text": "x"}')), words("Done")])
    recorder = await Execution(agent(model, [summarise])).run()
    assert recorder.counts["llm_calls"] == 3
    assert recorder.counts["input_tokens"] == 30
    assert recorder.of("tool.completed")[0]["result"] == "a summary"


# Tools in all their moods


async def test_a_raising_tool_fails_with_the_words_the_model_sees():
    model = ScriptedModel(rounds=[spelled(("c1", "boom", '{"text": "x"}')), words("Sorry")])
    execution = Execution(agent(model))
    recorder = await execution.run()
    (failed,) = recorder.of("tool.failed")
    messages = await execution.messages()
    assert failed["error"] == next(
        message.content for message in messages if isinstance(message, ToolMessage)
    )
    assert recorder.counts["tool_calls"] == 1


async def test_a_tool_that_raises_through_the_graph_fails_when_the_turn_does():
    model = ScriptedModel(rounds=[spelled(("c1", "boom", '{"text": "x"}'))])
    execution = Execution(agent(model, handle_tool_errors=False))
    with pytest.raises(ValueError, match="boom x"):
        await execution.run()
    execution.close(RunStatus.FAILED)
    assert execution.recorder.of("tool.failed")[0]["error"] == "boom x"
    assert execution.recorder.texts == ["", "(The turn failed before an answer was given.)"]


async def test_a_tool_that_is_tried_again_has_one_start_and_the_last_outcome():
    tries = []

    @tool
    async def flaky(text: str) -> str:
        """Fail once."""
        tries.append(text)
        if len(tries) == 1:
            raise ValueError("not yet")
        return "now"

    async def twice(request: ToolCallRequest, execute: Callable[..., Any]) -> Any:
        try:
            return await execute(request)
        except ValueError:
            return await execute(request)

    model = ScriptedModel(rounds=[spelled(("c1", "flaky", '{"text": "x"}')), words("Done")])
    graph = agent(model, [flaky], awrap_tool_call=twice, handle_tool_errors=False)
    recorder = await Execution(graph).run()
    assert len(tries) == 2
    assert recorder.counts["tool_calls"] == 1
    assert [data["result"] for data in recorder.of("tool.completed")] == ["now"]
    assert not recorder.of("tool.failed")


async def test_a_tools_own_cancelled_error_is_its_failure():
    @tool
    async def gives_up(text: str) -> str:
        """Cancel itself."""
        raise asyncio.CancelledError

    model = ScriptedModel(rounds=[spelled(("c1", "gives_up", '{"text": "x"}'))])
    execution = Execution(agent(model, [gives_up]))
    with pytest.raises(NodeCancelledError):
        await execution.run()
    execution.close(RunStatus.FAILED)
    (failed,) = execution.recorder.of("tool.failed")
    assert failed["error"] == "CancelledError"


async def test_a_tool_that_is_cancelled_because_its_sibling_raised_has_an_unknown_effect():
    waiting = asyncio.Event()

    @tool
    async def hang(text: str) -> str:
        """Never return."""
        waiting.set()
        await asyncio.Event().wait()
        return ""

    @tool
    async def boom_later(text: str) -> str:
        """Fail once the other one hangs."""
        await waiting.wait()
        raise ValueError(text)

    asked = spelled(("c1", "hang", '{"text": "x"}'), ("c2", "boom_later", '{"text": "x"}'))
    graph = agent(ScriptedModel(rounds=[asked]), [hang, boom_later], handle_tool_errors=False)
    fan_out(graph)
    execution = Execution(graph)
    with pytest.raises(ValueError, match="x"):
        await execution.run()
    execution.close(RunStatus.FAILED)
    assert execution.recorder.of("tool.cancelled") == [{"tool_call": "c1", "effect": "unknown"}]
    assert execution.recorder.of("tool.failed")[0]["tool_call"] == "c2"


async def test_c19_calls_that_cannot_run_get_an_end_and_their_siblings_run():
    """A broken call, an unknown tool, arguments of the wrong shape and a good call in one message."""
    asked = spelled(
        ("good", "echo", '{"text": "x"}'),
        ("broken", "echo", "not JSON"),
        ("unknown", "nothing", "{}"),
        ("wrong", "echo", '{"words": 1}'),
    )

    async def refuse_broken(state: MessagesState) -> dict[str, Any]:
        broken = state["messages"][-1].invalid_tool_calls  # type: ignore[union-attr]
        results = [ToolMessage("no JSON", tool_call_id=call["id"], status="error") for call in broken]
        return {"messages": results}

    model = ScriptedModel(rounds=[asked, words("Done")])
    graph = agent(model)
    graph.add_node("refuse", refuse_broken)
    graph.branches["agent"].clear()

    def route(state: MessagesState) -> Any:
        return ["tools", "refuse"] if getattr(state["messages"][-1], "tool_calls", None) else END

    graph.add_conditional_edges("agent", route, ["tools", "refuse", END])
    recorder = await Execution(graph).run()
    wire = {call["id"]: call for call in recorder.of("message.completed")[0]["tool_calls"]}
    assert set(wire) == {"good", "broken", "unknown", "wrong"}
    assert wire["broken"]["args"] == {}
    assert wire["broken"]["error"]
    assert "error" not in wire["good"]
    assert {data["tool_call"] for data in recorder.of("tool.failed")} == {"broken", "unknown", "wrong"}
    assert [data["tool_call"] for data in recorder.of("tool.completed")] == ["good"]
    assert {data["tool_call"] for data in recorder.of("tool.started")} == {"good", "wrong"}
    assert recorder.texts[-1] == "Done"


async def test_a_hand_made_tool_node_gets_its_events_from_its_messages():
    def answer(state: MessagesState) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage(f"by hand {call['id']}", tool_call_id=call["id"]) for call in calls]}

    model = ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}')), words("Done")])
    graph = agent(model)
    graph.nodes.pop("tools")
    graph.add_node("tools", answer)
    recorder = await Execution(graph).run()
    assert recorder.of("tool.started")[0]["node"] == "tools"
    assert recorder.of("tool.completed") == [{"tool_call": "c1", "result": "by hand c1", "duration_ms": None}]


async def test_a_tool_that_gives_a_command_has_the_text_of_its_message():
    @tool
    async def hand_over(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command:
        """Change the state."""
        return Command(update={"messages": [ToolMessage(f"handed over {text}", tool_call_id=tool_call_id)]})

    model = ScriptedModel(rounds=[spelled(("c1", "hand_over", '{"text": "x"}')), words("Done")])
    recorder = await Execution(agent(model, [hand_over])).run()
    assert recorder.of("tool.completed")[0]["result"] == "handed over x"
    assert recorder.of("tool.started")[0]["args"] == {"text": "x"}
    assert recorder.counts["message_count"] == 3


async def test_a_tool_reports_progress():
    @tool
    async def slow(text: str, runtime: ToolRuntime) -> str:
        """Tell how far it is."""
        runtime.emit_output_delta("half")
        runtime.emit_output_delta({"percent": 100})
        return "done"

    model = ScriptedModel(rounds=[spelled(("c1", "slow", '{"text": "x"}')), words("Done")])
    recorder = await Execution(agent(model, [slow])).run()
    assert recorder.of("tool.progress") == [
        {"tool_call": "c1", "text": "half"},
        {"tool_call": "c1", "text": '{"percent": 100}'},
    ]


async def test_a_tool_that_nobody_asked_for_has_no_message():
    async def direct(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(await echo.ainvoke({"text": "x"}))]}

    graph = StateGraph(MessagesState).add_node("direct", direct).add_edge(START, "direct")
    recorder = await Execution(graph).run()
    assert recorder.of("tool.started")[0]["message"] is None
    assert recorder.of("tool.completed")[0]["result"] == "echo x"
    assert recorder.counts == {"tool_calls": 1, "message_count": 1}


async def test_a_call_id_that_a_later_message_uses_again_is_another_call():
    same = ("call_0", "echo", '{"text": "x"}')
    recorder = await Execution(
        agent(ScriptedModel(rounds=[spelled(same), spelled(same), words("Done")]))
    ).run()
    assert len(recorder.of("tool.started")) == len(recorder.of("tool.completed")) == 2
    assert recorder.counts["message_count"] == 5


async def test_huge_results_and_arguments_are_cut_with_a_mark():
    @tool
    async def huge(text: str) -> str:
        """Say a lot."""
        return text * 2

    text = "y" * 400_000
    model = ScriptedModel(rounds=[spelled(("c1", "huge", json.dumps({"text": text}))), words("Done")])
    recorder = await Execution(agent(model, [huge])).run()
    result = recorder.of("tool.completed")[0]["result"]
    assert len(result) < 101_000
    assert result.endswith("[cut: 700000 more characters]")
    assert len(json.dumps(recorder.of("tool.started")[0]["args"])) < 101_000


# Questions


async def test_a_question_is_asked_once_and_its_tool_goes_on_after_the_answer():
    model = ScriptedModel(
        rounds=[spelled(("c1", "ask", '{"text": "ok?"}'), ("c2", "echo", '{"text": "x"}')), words("Done")]
    )
    inner = agent(model).compile()
    graph = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    first = Execution(graph)
    before = await first.run()
    (question,) = first.translator.questions
    assert question["value"] == {"question": "ok?"}
    assert first.translator.tools_open == {}
    assert "tool.cancelled" not in before.types
    known = known_of(before)
    second = Execution(graph, first.saver, known=known)
    after = await second.run(Command(resume={question["id"]: "yes"}))
    assert second.translator.questions == []
    assert after.types == ["tool.completed", "message.started", "message.delta", "message.completed"]
    assert after.of("tool.completed")[0]["result"] == "they said yes"
    assert before.counts["tool_calls"] + after.counts["tool_calls"] == 2
    assert before.counts["message_count"] + after.counts["message_count"] == 4


def known_of(recorder: Recorder) -> Known:
    """What the engine reads back from the log of an earlier execution."""
    started = {data["tool_call"] for data in recorder.of("tool.started")}
    ended = {data["tool_call"] for data in recorder.of(*ENDS)}
    completed = recorder.of("message.completed")
    return Known(
        messages=frozenset(data["message"] for data in completed),
        calls=tuple(
            KnownCall(
                call["id"],
                data["message"],
                call["name"],
                call["args"],
                call["id"] in started,
                call["id"] in ended,
            )
            for data in completed
            for call in data["tool_calls"]
        ),
    )


async def test_calls_of_an_earlier_execution_end_when_this_one_is_cancelled():
    known = Known(
        messages=frozenset({"m"}),
        calls=(
            KnownCall("ran", "m", "echo", {}, started=True, ended=True),
            KnownCall("open", "m", "echo", {}, started=True, ended=False),
            KnownCall("asked", "m", "echo", {}, started=False, ended=False),
        ),
    )
    execution = Execution(agent(ScriptedModel(rounds=[])), known=known)
    execution.close(RunStatus.CANCELLED)
    assert execution.recorder.of("tool.cancelled") == [
        {"tool_call": "open", "effect": "unknown"},
        {"tool_call": "asked", "effect": "none"},
    ]
    assert execution.recorder.texts == ["(Stopped before an answer was given.)"]


# Turns that do not complete


async def test_c13_a_cancelled_answer_keeps_exactly_the_text_that_was_told():
    model = ScriptedModel(rounds=[[*words("one ", "two ", usage=None), asyncio.Event(), *words("three")]])
    execution = Execution(agent(model))
    recorder = await execution.cancel_when(lambda recorder: len(recorder.of("message.delta")) == 2)
    (completed,) = recorder.of("message.completed")
    assert completed["text"] == "one two "
    assert completed["status"] == "interrupted"
    assert completed["usage"] is None
    assert recorder.counts["llm_calls"] == 1
    assert recorder.counts["tokens_estimated"] == 1
    assert recorder.counts["input_tokens"] > 0
    assert recorder.counts["output_tokens"] == 2
    assert recorder.counts["message_count"] == 1


@pytest.mark.parametrize("pieces", [1, 2, 3])
async def test_c09_a_call_that_was_still_being_spelled_out_is_dropped(pieces: int):
    asked = spelled(("c1", "echo", '{"text": "x"}'))
    model = ScriptedModel(
        rounds=[[*words("Let me. ", usage=None), *asked[:pieces], asyncio.Event(), *asked[pieces:]]]
    )
    execution = Execution(agent(model))
    recorder = await execution.cancel_when(
        lambda recorder: model.calls == 1 and bool(recorder.of("message.delta"))
    )
    (completed,) = recorder.of("message.completed")
    assert completed["text"] == "Let me. "
    assert completed["tool_calls"] == []
    assert not recorder.of("tool.started", *ENDS)


async def test_a_call_cut_without_any_text_leaves_a_note_and_no_empty_message():
    asked = spelled(("c1", "echo", '{"text": "x"}'))
    reached = asyncio.Event()

    class Marked(asyncio.Event):
        async def wait(self) -> bool:
            reached.set()
            return await super().wait()

    execution = Execution(agent(ScriptedModel(rounds=[[*asked[:3], Marked()]])))
    recorder = await execution.cancel_when(lambda _: reached.is_set())
    assert recorder.texts == ["(Stopped before an answer was given.)"]
    assert recorder.of("message.completed")[0]["message"] == f"{RUN}:note"
    assert recorder.of("message.completed")[0]["status"] == "interrupted"
    assert recorder.counts["output_tokens"] > 0


async def test_a_cancel_in_the_tools_tells_what_ran_from_what_did_not():
    """One result has arrived, one tool takes its CancelledError, one call is refused before it starts."""
    waiting = asyncio.Event()

    @tool
    async def hang(text: str) -> str:
        """Never return."""
        waiting.set()
        await asyncio.Event().wait()
        return ""

    asked = spelled(("done", "echo", '{"text": "x"}'), ("hung", "hang", '{"text": "x"}'))
    execution = Execution(agent(ScriptedModel(rounds=[asked]), [echo, hang]))
    recorder = await execution.cancel_when(
        lambda recorder: waiting.is_set() and bool(recorder.of("tool.completed"))
    )
    assert [data["tool_call"] for data in recorder.of("tool.completed")] == ["done"]
    assert recorder.of("tool.cancelled") == [{"tool_call": "hung", "effect": "unknown"}]
    assert recorder.texts == ["", "(Stopped before an answer was given.)"]
    assert recorder.counts["message_count"] == 4
    assert execution.translator.tools_open == {}


async def test_a_call_that_never_started_has_no_effect():
    graph = agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))]))
    reached = asyncio.Event()

    async def before_tools(state: MessagesState) -> None:
        reached.set()
        await asyncio.Event().wait()

    graph.branches["agent"].clear()
    graph.add_node("before", before_tools).add_edge("agent", "before").add_edge("before", "tools")
    execution = Execution(graph)
    recorder = await execution.cancel_when(lambda _: reached.is_set())
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "none"}]
    assert recorder.texts[-1] == "(Stopped before an answer was given.)"


async def test_a_result_that_arrived_and_was_not_told_yet_is_told_at_the_end():
    execution = Execution(agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))])))
    stream = execution.stream()
    async for namespace, mode, payload in stream:
        if mode == "tools":  # from here on everything stays in the queue
            await asyncio.sleep(0.01)
            break
        execution.translator.feed(namespace, mode, payload)
    await stream.aclose()
    execution.close(RunStatus.CANCELLED)
    assert execution.recorder.of("tool.completed")[0]["result"] == "echo x"


async def test_c30_a_step_limit_between_a_call_and_its_result_leaves_no_call_open():
    execution = Execution(agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))])))
    with pytest.raises(RecursionError):
        await execution.run(recursion_limit=1)
    execution.close(RunStatus.FAILED)
    assert execution.recorder.of("tool.cancelled") == [{"tool_call": "c1", "effect": "none"}]
    assert execution.recorder.texts == ["", "(The turn failed before an answer was given.)"]


async def test_a_retried_model_leaves_its_interrupted_message_and_counts_both_calls():
    model = ScriptedModel(rounds=[[*words("Half", usage=None), ConnectionError("gone")], words("Whole")])
    graph = agent(model)
    graph.nodes["agent"].retry_policy = RetryPolicy(initial_interval=0.0, jitter=False)  # type: ignore[assignment]
    recorder = await Execution(graph).run()
    assert recorder.texts == ["Half", "Whole"]
    assert [data["status"] for data in recorder.of("message.completed")] == ["interrupted", "complete"]
    assert recorder.counts["llm_calls"] == 2
    assert recorder.counts["tokens_estimated"] == 1


async def test_a_failing_provider_keeps_the_partial_text_and_needs_no_note():
    model = ScriptedModel(rounds=[[*words("Half", usage=None), ConnectionError("gone")]])
    execution = Execution(agent(model))
    with pytest.raises(ConnectionError):
        await execution.run()
    execution.close(RunStatus.FAILED)
    assert execution.recorder.texts == ["Half"]
    assert execution.translator.llm_calls_open == 0


async def test_a_turn_that_never_began_gets_its_note():
    execution = Execution(agent(ScriptedModel(rounds=[])))
    execution.close(RunStatus.CANCELLED)
    execution.close(RunStatus.FAILED)
    assert execution.recorder.types == ["message.started", "message.completed"]
    assert execution.recorder.counts == {"message_count": 1}


async def test_nothing_is_told_after_the_end():
    execution = Execution(agent(ScriptedModel(rounds=[words("late")])))
    execution.close(RunStatus.CANCELLED)
    told = list(execution.recorder.events)
    await execution.run(status=None)
    assert execution.recorder.events == told
    assert "llm_calls" not in execution.recorder.counts


# Chunk by chunk: what a graph does only at an unlucky moment


async def test_a_message_that_a_graph_gives_twice_is_told_once():
    recorder = Recorder()
    translator = Translator(recorder, run_id=RUN, known=Known(messages=frozenset({"before"})))
    for message_id in ("before", "hand", "hand"):
        translator.feed((), "messages", (AIMessage("Hi", id=message_id), {"langgraph_node": "node"}))
    assert recorder.texts == ["Hi"]
    assert recorder.counts["message_count"] == 1


async def test_an_answer_that_was_whole_at_the_end_is_told_to_its_last_word():
    """The model has ended, its node may have saved the message, and half of the chunks are in the queue."""
    execution = Execution(agent(ScriptedModel(rounds=[words("one ", "two ", "three")])))
    stream = execution.stream()
    fed = False
    async for chunk in stream:
        if chunk[1] == "messages" and not fed:
            execution.translator.feed(*chunk)
            fed = True
    execution.close(RunStatus.CANCELLED)
    assert execution.recorder.texts == ["one two three"]
    assert execution.recorder.of("message.completed")[0]["status"] == "complete"


def asked_for(recorder: Recorder) -> Translator:
    """A translator that has told of one call, c1, whose tool has begun."""
    translator = Translator(recorder, run_id=RUN)
    call = {"id": "c1", "name": "echo", "args": {}, "type": "tool_call"}
    message = AIMessage("Let me.", id="m", tool_calls=[call])
    translator.feed((), "messages", (message, {"langgraph_node": "agent"}))
    translator.tool_began(UUID(int=1), "c1", "tools")
    translator.feed((), "tools", {"event": "tool-started", "tool_call_id": "c1", "tool_name": "echo"})
    return translator


ERROR = {"event": "tool-error", "tool_call_id": "c1", "message": "not yet"}


async def test_a_tool_cancelled_from_outside_is_not_told_as_failed():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tool_raised(UUID(int=1), asyncio.CancelledError(), True)
    translator.feed((), "tools", {**ERROR, "message": ""})
    translator.close(RunStatus.FAILED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_a_tool_cancelled_while_it_is_tried_again_has_an_unknown_effect():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tool_raised(UUID(int=1), ValueError("not yet"), False)
    translator.feed((), "tools", ERROR)
    translator.tool_began(UUID(int=2), "c1", "tools")
    translator.feed((), "tools", {"event": "tool-started", "tool_call_id": "c1", "tool_name": "echo"})
    translator.close(RunStatus.CANCELLED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_a_tool_that_waits_for_the_user_has_not_failed():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tool_raised(UUID(int=1), GraphInterrupt(()), False)
    assert translator.tools_open == {}
    translator.close(RunStatus.CANCELLED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_an_id_used_again_does_not_inherit_the_result_of_its_first_call():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tool_returned(UUID(int=1), "first")
    translator.feed((), "tools", {"event": "tool-finished", "tool_call_id": "c1", "output": "first"})
    call = {"id": "c1", "name": "echo", "args": {}, "type": "tool_call"}
    message = AIMessage("Again.", id="m2", tool_calls=[call])
    translator.feed((), "messages", (message, {"langgraph_node": "agent"}))
    translator.close(RunStatus.CANCELLED)
    assert recorder.of("tool.cancelled") == [{"tool_call": "c1", "effect": "none"}]
    assert_log_is_sound(recorder)


async def test_text_in_front_of_a_call_is_no_answer():
    recorder = Recorder()
    asked_for(recorder).close(RunStatus.CANCELLED)
    assert recorder.texts == ["Let me.", "(Stopped before an answer was given.)"]
    assert_log_is_sound(recorder)


# Text that cannot be stored


def _words_of(error: Exception) -> str:
    return str(error)


async def test_c32_unstorable_characters_are_replaced_wherever_they_come_from():
    @tool
    async def dirty(text: str) -> str:
        """Give what cannot be stored."""
        if text == "raise":
            raise ValueError("bad\x00\ud800")
        return "nul\x00 lone\udc00"

    pieces = words("a\x00b", "x\ud83d", "\ude00y", "z\ud83d", usage=None)
    asked = spelled(("c1", "dirty", '{"text": "q\\u0000\\ud800"}'), ("c2", "dirty", '{"text": "raise"}'))
    model = ScriptedModel(rounds=[[*pieces, *asked], words("Done")])
    recorder = await Execution(agent(model, [dirty], handle_tool_errors=_words_of)).run()
    assert recorder.texts[0] == "a\ufffdbx\U0001f600yz\ufffd"
    assert recorder.of("tool.started")[0]["args"] == {"text": "q\ufffd\ufffd"}
    assert recorder.of("tool.completed")[0]["result"] == "nul\ufffd lone\ufffd"
    assert recorder.of("tool.failed")[0]["error"] == "bad\ufffd\ufffd"


# What only some runs log


async def test_updates_and_custom_chunks_are_logged_when_asked_for_and_only_then():
    async def node(state: MessagesState, writer: StreamWriter) -> dict[str, Any]:
        writer({"half": float("nan"), "bytes": b"123", "set": {1}})
        return {"messages": [AIMessage("Hi", id="m")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")
    silent = await Execution(graph).run()
    assert silent.types == ["message.started", "message.delta", "message.completed"]
    recorder = await Execution(graph, log_updates=True, log_custom=True).run()
    assert recorder.of("graph.custom") == [
        {"namespace": [], "data": {"half": "nan", "bytes": "[3 bytes]", "set": [1]}}
    ]
    (update,) = recorder.of("graph.update")
    assert update["node"] == "node"
    assert update["data"]["messages"][0] == {"type": "ai", "id": "m", "content": "Hi"}


async def test_state_without_messages_and_odd_values_do_no_harm():
    class State(TypedDict):
        value: Any
        messages: Annotated[list[AnyMessage], lambda old, new: old + new]

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]

    def node(state: State) -> dict[str, Any]:
        return {
            "value": {"odd": Odd(), "deep": deep, "big": 10**5000, "many": list(range(200_000)), 1: "\ud800"}
        }

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node")  # type: ignore[type-var]
    execution = Execution(graph, log_updates=True)
    execution.graph.checkpointer = None
    stream = execution.graph.astream({"messages": []}, stream_mode=MODES, subgraphs=True)
    async for chunk in stream:
        execution.translator.feed(*chunk)
    (update,) = execution.recorder.of("graph.update")
    assert len(json.dumps(update)) < 300_000
    assert update["data"]["value"]["odd"] == "[Odd]"


# Whatever happens


pieces = st.text(st.sampled_from("ab\x00é\ud83d\ude00 "), max_size=4)
call_names = st.sampled_from(["echo", "boom", "nothing"])


@st.composite
def scripts(draw: st.DrawFn) -> list[list[Any]]:
    """Rounds of text and calls, some broken, some cut by an error; the last one is plain text."""
    rounds: list[list[Any]] = []
    for number in range(draw(st.integers(0, 3))):
        chunks: list[Any] = words(*draw(st.lists(pieces, max_size=4)), usage=None)
        calls = [
            (f"c{number}.{index}", draw(call_names), draw(st.sampled_from(['{"text": "x"}', "{}", '{"te'])))
            for index in range(draw(st.integers(1, 3)))
        ]
        chunks += spelled(*calls, usage=draw(st.sampled_from([None, (10, 5)])))
        if draw(st.integers(0, 5)) == 0:
            chunks.insert(draw(st.integers(0, len(chunks))), ConnectionError("gone"))
        rounds.append(chunks)
    return [*rounds, words("end", *draw(st.lists(pieces, max_size=4)))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds=scripts(), streamed=st.booleans(), stop=st.one_of(st.none(), st.integers(0, 60)))
def test_every_log_is_sound_wherever_the_turn_is_cut(
    rounds: list[list[Any]], streamed: bool, stop: int | None
):
    """Cut after ``stop`` chunks, or run to the end or into an error: deltas, ends and counts agree."""
    asyncio.run(cut_after(rounds, streamed, stop))


async def cut_after(rounds: list[list[Any]], streamed: bool, stop: int | None) -> None:
    model = (ScriptedModel if streamed else WholeModel)(rounds=rounds)
    execution = Execution(agent(model))
    status = RunStatus.COMPLETED
    stream = execution.stream()
    try:
        fed = 0
        async for chunk in stream:
            if fed == stop:
                status = RunStatus.CANCELLED
                break
            execution.translator.feed(*chunk)
            fed += 1
    except ConnectionError:
        status = RunStatus.FAILED
    await stream.aclose()
    execution.close(status)
    last = execution.recorder.events[-1:]
    if status != RunStatus.COMPLETED:
        assert last
        assert last[0][0] == "message.completed"
        assert last[0][1]["text"].strip()
        assert not last[0][1]["tool_calls"]
