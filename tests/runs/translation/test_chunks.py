"""What a graph does only at an unlucky moment, and what holds for every graph."""

import asyncio
import json
import math
from typing import Annotated, Any, TypedDict
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import StreamWriter

from runs.states import RunStatus
from runs.translation.translator import LoggedBefore, Translator
from tests.runs.translation.execution import MODES, RUN, Execution
from tests.runs.translation.recorder import ENDS, Recorder, assert_log_is_sound
from tests.runs.translation.scripted import ScriptedModel, WholeModel, agent, spelled, words

settings.load_profile("ci")  # the same examples each time

# Chunk by chunk: what a graph does only at an unlucky moment


async def test_a_message_that_a_graph_gives_twice_is_told_once():
    recorder = Recorder()
    translator = Translator(recorder, run_id=RUN, known=LoggedBefore(messages=frozenset({"before"})))
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
    translator.tools.gated_tools = {"echo"}
    call = {"id": "c1", "name": "echo", "args": {}, "type": "tool_call"}
    message = AIMessage("Let me.", id="m", tool_calls=[call])
    translator.feed((), "messages", (message, {"langgraph_node": "agent"}))
    translator.tools.began(UUID(int=1), "c1", "tools")
    translator.feed((), "tools", {"event": "tool-started", "tool_call_id": "c1", "tool_name": "echo"})
    return translator


ERROR = {"event": "tool-error", "tool_call_id": "c1", "message": "not yet"}


async def test_a_tool_cancelled_from_outside_is_not_told_as_failed():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tools.raised(UUID(int=1), asyncio.CancelledError(), True)
    translator.feed((), "tools", {**ERROR, "message": ""})
    translator.close(RunStatus.FAILED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_a_tool_cancelled_while_it_is_tried_again_has_an_unknown_effect():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tools.raised(UUID(int=1), ValueError("not yet"), False)
    translator.feed((), "tools", ERROR)
    translator.tools.began(UUID(int=2), "c1", "tools")
    translator.feed((), "tools", {"event": "tool-started", "tool_call_id": "c1", "tool_name": "echo"})
    translator.close(RunStatus.CANCELLED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_a_tool_that_waits_for_the_user_has_not_failed():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tools.raised(UUID(int=1), GraphInterrupt(()), False)
    assert translator.tools.open == {}
    translator.close(RunStatus.CANCELLED)
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "unknown"}]


async def test_an_id_used_again_does_not_inherit_the_result_of_its_first_call():
    recorder = Recorder()
    translator = asked_for(recorder)
    translator.tools.returned(UUID(int=1), "first")
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


async def test_unstorable_characters_are_replaced_wherever_they_come_from():
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
        numbers = [10**5000, 2.0**63, 1.5, math.inf, math.nan]
        many = list(range(200_000))
        return {"value": {"odd": Odd(), "deep": deep, "numbers": numbers, "many": many, 1: "\ud800"}}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node")  # type: ignore[type-var]
    execution = Execution(graph, log_updates=True)
    execution.graph.checkpointer = None
    stream = execution.graph.astream({"messages": []}, stream_mode=MODES, subgraphs=True)
    async for chunk in stream:
        execution.translator.feed(*chunk)
    (update,) = execution.recorder.of("graph.update")
    assert len(json.dumps(update)) < 300_000
    value = update["data"]["value"]
    assert value["odd"] == "[Odd]"
    assert value["numbers"] == ["[a number of 16610 bits]", "9.223372036854776e+18", 1.5, "inf", "nan"]


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


@settings(max_examples=60)
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
