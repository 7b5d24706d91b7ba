"""The default agent answers, calls its tools side by side, and asks again after an empty answer."""

import asyncio

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, NodeCancelledError
from langgraph.types import Command

from chat.agent.demo_model import DemoModel
from chat.agent.graph import EmptyAnswer, build, build_graph
from chat.agent.tools import TOOLS
from runs.agents import policy_of
from runs.stopping.cancel_token import CancelToken, current
from tests.chat.agent.turns import ASK, CONFIG, agent, results, run
from tests.fakes import (
    Marks,
    Round,
    Script,
    ScriptedModel,
    call,
    calls,
    say,
    text,
    unsendable,
)


async def test_the_agent_answers(marks: Marks) -> None:
    messages = await run(ScriptedModel(say("Hello there.")), marks)
    assert [message.type for message in messages] == ["human", "ai"]
    assert messages[1].content == "Hello there."
    assert all(message.id for message in messages)


async def test_the_prompt_is_sent_and_not_stored(marks: Marks) -> None:
    model = ScriptedModel(say("Hello."))
    messages = await run(model, marks)
    assert model.calls[0].messages[0]["role"] == "system"
    assert "system" not in {message.type for message in messages}


async def test_calls_of_one_message_run_side_by_side_and_answer_in_their_order(marks: Marks) -> None:
    model = ScriptedModel(
        calls(("slow_async", {"seconds": 0.2}), ("mark", {"x": "1"}), ("mark", {"x": "2"})), say("done")
    )
    messages = await run(model, marks)
    assert [result.content for result in results(messages)] == ["awaited 0.2 s", "marked 1", "marked 2"]
    assert marks.read()[-1] == "slow_async ended"
    assert [message["role"] for message in model.calls[1].messages[2:]] == [
        "assistant",
        "tool",
        "tool",
        "tool",
    ]


async def test_finished_calls_survive_a_cancel_of_their_siblings(marks: Marks) -> None:
    graph = agent(
        ScriptedModel(calls(("mark", {"x": "1"}), ("slow_async", {"seconds": 60})), say("done")), marks
    )
    turn = asyncio.create_task(graph.ainvoke(ASK, CONFIG))
    await marks.seen("slow_async started")
    async with asyncio.timeout(10):
        while not results((await graph.aget_state(CONFIG)).values.get("messages", [])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    state = await graph.aget_state(CONFIG)
    assert [result.content for result in results(state.values["messages"])] == ["marked 1"]


async def test_a_tool_that_raises_tells_the_model(marks: Marks) -> None:
    model = ScriptedModel(call("boom", message="out of paper"), say("sorry"))
    [result] = results(await run(model, marks))
    assert result.status == "error"
    assert "out of paper" in result.text


async def test_a_tool_called_with_wrong_fields_tells_the_model(marks: Marks) -> None:
    [result] = results(await run(ScriptedModel(call("slow_async", seconds="many"), say("sorry")), marks))
    assert result.status == "error"
    assert "seconds" in result.text


async def test_a_tool_that_cancels_itself_has_failed_and_the_turn_goes_on(marks: Marks) -> None:
    messages = await run(ScriptedModel(call("cancelling"), say("sorry")), marks)
    assert results(messages)[0].status == "error"
    assert messages[-1].content == "sorry"


async def test_a_tool_that_is_cancelled_with_its_run_is_no_failed_tool(marks: Marks) -> None:
    token = CancelToken()
    current.set(token)
    model = ScriptedModel(call("cancelling"), say("sorry"))
    graph = agent(model, marks)
    token.cancel()
    with pytest.raises((asyncio.CancelledError, NodeCancelledError)):
        await graph.ainvoke(ASK, CONFIG)
    assert len(model.calls) == 1
    assert results((await graph.aget_state(CONFIG)).values["messages"]) == []


async def test_a_tool_asks_and_gets_the_answer(marks: Marks) -> None:
    graph = agent(ScriptedModel(call("ask", question="Sure?"), say("fine")), marks)
    state = await graph.ainvoke(ASK, CONFIG)
    [asked] = state["__interrupt__"]
    assert asked.value == {"question": "Sure?", "options": ["Yes", "No"]}
    state = await graph.ainvoke(Command(resume={asked.id: "Yes"}), CONFIG)
    assert results(state["messages"])[0].content == "The user answered Yes."


@pytest.mark.parametrize("empty", [Round(), say(" "), Round(text("\n\n"))])
async def test_an_empty_answer_is_asked_for_again(empty: Round, marks: Marks) -> None:
    model = ScriptedModel(empty, say("Here I am."))
    messages = await run(model, marks)
    assert [message.content for message in messages] == ["go", "Here I am."]
    assert len(model.calls) == 2


async def test_two_empty_answers_are_a_failure_with_a_sentence(marks: Marks) -> None:
    with pytest.raises(EmptyAnswer) as failure:
        await run(ScriptedModel(Round(), Round()), marks)
    assert failure.value.error_code == "provider"
    assert "empty answer" in failure.value.user_message


async def test_a_model_that_never_stops_calling_meets_the_step_limit(marks: Marks) -> None:
    graph = agent(ScriptedModel(script=Script(default=call("mark", x="1"))), marks)
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(ASK, {**CONFIG, "recursion_limit": 7})
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    assert len(results(messages)) == len(marks.read()) == 3


async def test_the_configured_agent_uses_the_demo_model_and_says_what_it_is(marks: Marks) -> None:
    policy = policy_of("assistant")
    assert policy.title
    assert "calculate" in policy.idempotent_tools
    assert "keep_note" not in policy.idempotent_tools
    graph = build_graph().compile()
    assert {"llm_call", "tool_node"} <= set(graph.nodes)


async def test_the_demo_model_drives_the_agent_s_own_tools() -> None:
    graph = build(DemoModel(words_per_second=10_000), TOOLS).compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke(
        {"messages": [HumanMessage("Calculate 6 * 7, count primes up to 100 and wait 0.01 seconds")]}, CONFIG
    )
    assert unsendable(state["messages"]) is None
    answer = state["messages"][-1].content
    for piece in ("**42**", "25 prime numbers", "Waited for 0.01 seconds"):
        assert piece in answer
