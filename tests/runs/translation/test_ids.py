"""Providers that give no ids, empty ones, or the same ones again: each message and each call is on record."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolCallChunk, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from tests.runs.translation.execution import Execution
from tests.runs.translation.scripted import ScriptedModel, WholeModel


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def graph_of(model: Any) -> StateGraph[Any, Any, Any, Any]:
    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("agent", call_model)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph


def says(*texts: str, message_id: str | None = "m") -> list[AIMessageChunk]:
    return [AIMessageChunk(content=text, id=message_id) for text in texts]


def asks(*calls: tuple[str | None, str], message_id: str | None = "m") -> list[AIMessageChunk]:
    """Calls of ``look``, ``(id, what)`` each, in pieces."""
    chunks = []
    for index, (call_id, what) in enumerate(calls):
        begin = ToolCallChunk(type="tool_call_chunk", id=call_id, name="look", args='{"at": "', index=index)
        end = ToolCallChunk(type="tool_call_chunk", id=None, name=None, args=f'{what}"}}', index=index)
        chunks += [
            AIMessageChunk(content="", tool_call_chunks=[piece], id=message_id) for piece in (begin, end)
        ]
    return chunks


async def turns(kind: type, *rounds_of_turns: list[Any]) -> tuple[list[Any], list[Execution]]:
    """The messages in the state after these turns, and their executions."""
    saver = InMemorySaver()
    done = []
    for rounds in rounds_of_turns:
        execution = Execution(graph_of(kind(rounds=rounds)), saver)
        await execution.run()
        done.append(execution)
    return await done[-1].messages(), done


def pairs(messages: list[Any]) -> list[tuple[str, str]]:
    """(what was asked, what was given) of each call, each result directly behind its message."""
    found = []
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage) and message.tool_calls:
            results = messages[index + 1 : index + 1 + len(message.tool_calls)]
            assert all(isinstance(result, ToolMessage) for result in results)
            assert [result.tool_call_id for result in results] == [call["id"] for call in message.tool_calls]
            found += [(c["args"]["at"], r.content) for c, r in zip(message.tool_calls, results, strict=True)]
    return found


KINDS = pytest.mark.parametrize("kind", [ScriptedModel, WholeModel], ids=["streamed", "whole"])


def all_ids(messages: list[Any]) -> list[str]:
    calls = [call["id"] for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    return [*(message.id for message in messages), *calls]


@KINDS
@pytest.mark.parametrize("message_id", ["m", "", None])
async def test_messages_with_one_id_stay_apart_over_rounds_and_turns(kind, message_id):
    def turn(number: int) -> list[Any]:
        asked = asks((f"c{number}", str(number)), message_id=message_id)
        return [asked, says(f"Answer {number}", ".", message_id=message_id)]

    messages, done = await turns(kind, turn(1), turn(2), turn(3))
    assert [m.text for m in messages if m.type == "ai"] == ["", "Answer 1.", "", "Answer 2.", "", "Answer 3."]
    assert len(set(all_ids(messages))) == len(all_ids(messages))
    logged = [data["message"] for execution in done for data in execution.recorder.of("message.completed")]
    assert logged == [message.id for message in messages if message.type == "ai"]
    assert [text for execution in done for text in execution.recorder.texts if text] == [
        "Answer 1.", "Answer 2.", "Answer 3."
    ]  # fmt: skip
    assert not [data for execution in done for data in execution.recorder.of("message.changed")]


@KINDS
@pytest.mark.parametrize("ids", [("", ""), (None, None), ("x", "x"), ("x", "")])
async def test_calls_without_a_good_id_get_their_own_results(kind, ids):
    def turn(number: int) -> list[Any]:
        first, second = asks((ids[0], f"a{number}"), (ids[1], f"b{number}")), asks((ids[0], f"c{number}"))
        return [first, second, says("Done.", message_id=None)]

    messages, done = await turns(kind, turn(1), turn(2))
    assert pairs(messages) == [
        (what, f"saw {what}") for what in ("a1", "b1", "c1", "a2", "b2", "c2")
    ]  # fmt: skip
    assert len(set(all_ids(messages))) == len(all_ids(messages))
    for execution in done:
        recorder = execution.recorder
        started = [data["tool_call"] for data in recorder.of("tool.started")]
        assert len(set(started)) == 3
        assert [data["tool_call"] for data in recorder.of("tool.completed")] == started
        assert recorder.counts["tool_calls"] == 3


@KINDS
async def test_good_ids_of_the_provider_stay(kind):
    messages, _ = await turns(
        kind, [asks(("call_1", "x"), message_id="msg_1"), says("Done.", message_id="msg_2")]
    )
    assert [message.id for message in messages if message.type == "ai"] == ["msg_1", "msg_2"]
    assert messages[1].tool_calls[0]["id"] == "call_1"


async def test_the_blocks_of_the_content_name_a_call_as_its_message_does():
    block = {"type": "tool_use", "id": "x", "name": "look", "input": {"at": "b"}, "index": 1}
    second = AIMessageChunk(
        content=[block],
        id="m",
        tool_call_chunks=[
            ToolCallChunk(type="tool_call_chunk", id="x", name="look", args='{"at": "b"}', index=1)
        ],
    )
    messages, _ = await turns(ScriptedModel, [asks(("x", "a")), [second], says("Done.")])
    asked = [m for m in messages if m.type == "ai" and m.tool_calls]
    assert asked[1].tool_calls[0]["id"] != "x"
    assert asked[1].content[0]["id"] == asked[1].tool_calls[0]["id"]
