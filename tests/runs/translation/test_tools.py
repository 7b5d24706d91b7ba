"""Tool calls become events, whatever the tools do."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from langgraph.errors import NodeCancelledError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolRuntime
from langgraph.types import Command

from runs.states import RunStatus
from tests.runs.translation.execution import Execution
from tests.runs.translation.scripted import ScriptedModel, agent, echo, fan_out, hanging, spelled, words


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
    assert execution.recorder.of("tool.failed")[0]["error"] == "The tool failed."
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
    assert failed["error"] == "The tool failed."


async def test_a_tool_that_is_cancelled_because_its_sibling_raised_has_an_unknown_effect():
    waiting = asyncio.Event()

    @tool
    async def boom_later(text: str) -> str:
        """Fail once the other one hangs."""
        await waiting.wait()
        raise ValueError(text)

    asked = spelled(("c1", "hang", '{"text": "x"}'), ("c2", "boom_later", '{"text": "x"}'))
    graph = agent(ScriptedModel(rounds=[asked]), [hanging(waiting), boom_later], handle_tool_errors=False)
    fan_out(graph)
    execution = Execution(graph)
    with pytest.raises(ValueError, match="x"):
        await execution.run()
    execution.close(RunStatus.FAILED)
    assert execution.recorder.of("tool.cancelled") == [{"tool_call": "c1", "effect": "unknown"}]
    assert execution.recorder.of("tool.failed")[0]["tool_call"] == "c2"


async def test_calls_that_cannot_run_get_an_end_and_their_siblings_run():
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


@pytest.mark.parametrize("length", [200, 201, 5000])
async def test_a_name_that_a_model_lost_itself_in_fits_its_column_with_its_mark(length):
    name = ("echo" * length)[:length]
    model = ScriptedModel(rounds=[spelled(("c1", name, '{"text": "x"}')), words("Done")])
    recorder = await Execution(agent(model)).run()
    (asked,) = recorder.of("message.completed")[0]["tool_calls"]
    assert len(asked["name"]) == 200
    assert asked["name"].endswith(f" [cut: {length} characters]") == (length > 200)


async def test_the_name_of_a_tool_that_nobody_asked_for_fits_its_column():
    async def endless(text: str) -> str:
        """Has a long name."""
        return text

    made = StructuredTool.from_function(coroutine=endless, name="endless" * 50)

    async def direct(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(await made.ainvoke({"text": "x"}))]}

    graph = StateGraph(MessagesState).add_node("direct", direct).add_edge(START, "direct")
    recorder = await Execution(graph).run()
    assert len(recorder.of("tool.started")[0]["name"]) == 200


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
