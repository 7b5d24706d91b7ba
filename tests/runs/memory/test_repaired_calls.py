"""After a repair each tool call has one result: a real one if there is any, else what is known."""

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.graph import START

from runs.log.transcript import note_id
from runs.memory.normalise import engine_mark
from runs.memory.repair import repair
from runs.states import Effect, ToolStatus
from tests.fakes import unsendable
from tests.runs.memory.histories import (
    CONFIG,
    SESSION,
    SHAPES,
    Agent,
    Deltas,
    Plain,
    Talker,
    asking,
    assert_repaired,
    called,
    history,
    result,
    said,
    turn,
    user,
    words,
)


@SHAPES
@pytest.mark.parametrize("held", [["c0"], ["c1"], ["c2"], ["c0", "c2"], ["c0", "c1", "c2"]], ids="".join)
async def test_real_results_of_parallel_calls_are_kept_in_the_order_of_the_calls(schema, held):
    agent = Agent(schema, set(held))
    await agent.cut()
    calls = [called(call, started=True) for call in agent.calls]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    for call, answer in zip(agent.calls, messages[2:5], strict=True):
        assert answer.tool_call_id == call
        assert (answer.text == f"real {call}") == (call not in held)
        assert (answer.status == "error") == (call in held)
    assert messages[-1].id == note_id("run1")
    assert engine_mark(messages[-1]) == "interrupted"
    values = (await agent.graph.aget_state(CONFIG)).values
    assert values["topic"] == "kept"
    assert sorted(values["notes"]) == sorted({"start", *agent.calls} - set(held)), (
        "what finished tools wrote stays"
    )
    # The next turn is a fresh one: the agent sees all of it, and no tool runs again.
    ran = set(agent.running)
    agent.running.clear()
    await agent.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    assert agent.running == set()
    assert words(agent.seen[-1]) == [*words(messages), ("human", "question 2")]
    assert ran == set(agent.calls)


@SHAPES
async def test_history_is_one_unbroken_line_with_one_root(schema):
    agent = Agent(schema, {"c1"})
    await agent.cut()
    await repair(agent.graph, SESSION, [turn(1, said("a1"))])
    await agent.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    line = [state async for state in agent.graph.aget_state_history(CONFIG)]
    ids = [state.config["configurable"]["checkpoint_id"] for state in line]
    parents = [state.parent_config and state.parent_config["configurable"]["checkpoint_id"] for state in line]
    assert parents == [*ids[1:], None]


@SHAPES
async def test_a_result_that_only_the_log_knows_is_taken_from_it(schema):
    agent = Agent(schema, {"c0", "c1", "c2"})
    await agent.cut()
    calls = [
        called("c0", status=ToolStatus.COMPLETED, result="from the log", effect=Effect.DONE),
        called("c1", status=ToolStatus.FAILED, error="it broke", effect=Effect.DONE),
        called("c2", effect=Effect.NONE),
    ]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [(message.text, message.status) for message in messages[2:4]] == [
        ("from the log", "success"),
        ("it broke", "error"),
    ]
    assert "before it ran" in messages[4].text


@SHAPES
async def test_a_call_says_as_much_of_its_effect_as_is_known(schema):
    agent = Agent(schema, {"c0", "c1", "c2"})
    await agent.cut()
    lost = {"status": ToolStatus.INTERRUPTED, "effect": Effect.UNKNOWN}
    calls = [called("c0", effect=Effect.NONE), called("c1", started=True, **lost), called("c2", **lost)]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [message.text for message in messages[2:5]] == [
        "This call was cancelled before it ran. It had no effect.",
        "This call was interrupted while it ran. It may have taken effect; its result is not known.",
        "This call was interrupted. It may have begun and taken effect; its result is not known.",
    ]


async def test_a_call_that_was_still_being_spelled_out_is_dropped_and_the_text_before_it_stays():
    talker = Talker()
    await talker.cut()
    spelling = said("m1", "Let me look.", "interrupted", [called("c1", "m1")])
    messages = await assert_repaired(talker.graph, [turn(1, spelling)])
    assert words(messages) == [("human", "question 1"), ("ai", "Let me look.")]
    assert messages[-1].tool_calls == []


async def test_an_answer_that_was_complete_in_an_unfinished_step_is_kept_with_its_calls():
    talker = Talker()
    await talker.cut()
    log = said("m", "Let me look.", calls=[called("c1", "m", effect=Effect.NONE)], node="agent")
    messages = await assert_repaired(talker.graph, [turn(1, log)])
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert "before it ran" in messages[2].text


@SHAPES
@pytest.mark.parametrize("size", [2, 6])
async def test_orphans_in_the_middle_of_old_history_are_repaired(schema, size):
    agent = Agent(schema, set())
    old: list[BaseMessage] = []
    for number in range(size):
        old += [HumanMessage("old", id=f"o{number}"), asking(f"x{number}", f"y{number}", id=f"b{number}")]
        if number % 2:
            old += [result(f"y{number}")]
    old += [
        result("y0"),
        ToolMessage("of no call", tool_call_id="nobody", id="stray"),
        SystemMessage("s", id="s"),
    ]
    await agent.graph.aupdate_state(CONFIG, {"messages": old, "topic": "kept", "notes": ["n"]}, as_node=START)
    messages = await assert_repaired(agent.graph, [])
    assert [m.id for m in messages if m.type == "human"] == [f"o{number}" for number in range(size)]
    assert {m.tool_call_id for m in messages if m.text.startswith("real")} == {"y0"} | {
        f"y{number}" for number in range(1, size, 2)
    }
    assert (await agent.graph.aget_state(CONFIG)).values["topic"] == "kept"


@pytest.mark.parametrize("schema", [Plain, Deltas], ids=["plain", "deltas"])
async def test_results_that_stand_too_late_at_the_end_are_moved_without_writing_all_anew(schema):
    talker = Talker(schema)
    old: list[BaseMessage] = [user(), AIMessage("an answer", id="x"), user(2), asking("c1", "c2", "c3")]
    await talker.graph.aupdate_state(
        CONFIG, {"messages": [*old, result("c3"), result("c2")]}, as_node="agent"
    )
    report = await repair(talker.graph, SESSION, [turn(2)])
    assert report.written
    assert not report.rewritten
    messages = await history(talker.graph)
    assert unsendable(messages) is None
    assert [message.tool_call_id for message in messages[4:7]] == ["c1", "c2", "c3"]
    assert [message.text for message in messages[5:7]] == ["real c2", "real c3"]
