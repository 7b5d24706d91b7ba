"""Answers become events: streamed and whole ones, side by side and nested."""

import threading
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

from tests.runs.translation.execution import Execution
from tests.runs.translation.scripted import ScriptedModel, WholeModel, agent, fan_out, spelled, words

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
