"""After a repair the history has each turn once, in order, with its message and an answer."""

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from runs.log.transcript import note_id
from runs.memory.normalise import engine_mark, normalise
from runs.memory.repair import RepairFailed, repair
from runs.states import RunStatus
from tests.runs.memory.histories import (
    CONFIG,
    SESSION,
    Deltas,
    Talker,
    asking,
    assert_repaired,
    history,
    result,
    said,
    turn,
    user,
    words,
)


async def test_the_partial_answer_is_kept_in_the_logs_very_words_and_marked():
    talker = Talker()
    await talker.cut()
    partial = "  one two\n\nthree "
    messages = await assert_repaired(
        talker.graph, [turn(1, said("m1", partial, "interrupted", node="agent"))]
    )
    assert words(messages) == [("human", "question 1"), ("ai", partial)]
    assert messages[-1].id == "m1"
    assert engine_mark(messages[-1]) == "interrupted"


async def test_the_closing_note_of_the_log_is_used_word_for_word():
    talker = Talker()
    await talker.cut()
    note = said(note_id("run1"), "Stopped by alice.", "interrupted")
    messages = await assert_repaired(talker.graph, [turn(1, note)])
    assert words(messages)[1:] == [("ai", "Stopped by alice.")]


@pytest.mark.parametrize("schema", [MessagesState, Deltas], ids=["plain", "deltas"])
async def test_the_user_message_is_there_when_the_run_died_before_its_first_checkpoint(schema):
    talker = Talker(schema)
    messages = await assert_repaired(talker.graph, [turn(1, status=RunStatus.INTERRUPTED)])
    assert [message.id for message in messages] == ["u1", note_id("run1")]
    talker.is_cut = False
    answer = await talker.graph.ainvoke({"messages": [user(2)]}, CONFIG)
    assert words(answer["messages"])[-2:] == [("human", "question 2"), ("ai", "an answer")]


async def test_several_turns_that_were_cancelled_in_the_queue_enter_in_their_order():
    talker = Talker()
    await talker.cut()
    turns = [turn(1, said("m1", "half", "interrupted")), turn(2), turn(3)]
    messages = await assert_repaired(talker.graph, turns)
    assert [message.id for message in messages] == ["u1", "m1", "u2", note_id("run2"), "u3", note_id("run3")]


async def test_a_turn_that_is_missing_before_one_that_is_there_enters_before_it():
    talker = Talker()
    await talker.cut(2)
    messages = await assert_repaired(talker.graph, [turn(1), turn(2)])
    assert [message.id for message in messages] == ["u1", note_id("run1"), "u2", note_id("run2")]


async def test_a_retried_turn_leaves_the_history_and_what_was_before_it_stays():
    talker = Talker()
    talker.is_cut = False
    await talker.graph.ainvoke({"messages": [user(1)]}, CONFIG)
    talker.is_cut = True
    await talker.cut(2)
    await repair(talker.graph, SESSION, [turn(2)])
    messages = await assert_repaired(talker.graph, [], drop={"u2"})
    assert words(messages) == [("human", "question 1"), ("ai", "an answer")]


async def test_a_retried_turn_goes_and_a_later_unrepaired_one_stays():
    talker = Talker()
    await talker.cut(1)
    messages = await assert_repaired(talker.graph, [turn(2)], drop={"u1"})
    assert [message.id for message in messages] == ["u2", note_id("run2")]


async def test_a_question_of_a_cancelled_run_is_gone_and_the_next_input_starts_afresh():
    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(f"you said {interrupt('really?')}")]}

    graph = Talker(node=ask).graph
    await graph.ainvoke({"messages": [user(1)]}, CONFIG)
    assert (await graph.aget_state(CONFIG)).interrupts
    await assert_repaired(graph, [turn(1)])
    asked = await graph.ainvoke({"messages": [user(2)]}, CONFIG)
    assert [question.value for question in asked["__interrupt__"]] == ["really?"]
    assert words(asked["messages"])[-1] == ("human", "question 2")


async def test_a_turn_that_reached_the_step_limit_behind_a_tool_result_is_closed():
    def agent(state: Any) -> Any:
        return {"messages": [asking(f"c{len(state['messages'])}", id=f"a{len(state['messages'])}")]}

    def tool(state: Any) -> Any:
        return {"messages": [result(state["messages"][-1].tool_calls[0]["id"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tool", tool)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tool")
    builder.add_edge("tool", "agent")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    from langgraph.errors import GraphRecursionError

    with pytest.raises(GraphRecursionError):
        await graph.ainvoke({"messages": [user()]}, CONFIG | {"recursion_limit": 4}, durability="sync")
    messages = await assert_repaired(graph, [turn(1, status=RunStatus.FAILED)])
    assert messages[-1].id == note_id("run1")
    assert [message.type for message in messages] == ["human", *["ai", "tool"] * 2, "ai"]


async def test_the_end_of_a_long_history_is_repaired_without_writing_it_anew():
    talker = Talker(Deltas)
    talker.is_cut = False
    old = [m for n in range(300) for m in (HumanMessage("q", id=f"q{n}"), AIMessage("a", id=f"r{n}"))]
    await talker.graph.ainvoke({"messages": old}, CONFIG)
    talker.is_cut = True
    await talker.cut()
    report = await repair(talker.graph, SESSION, [turn(1, said("m", "half", "interrupted"))])
    assert report.written
    assert not report.rewritten
    assert words(await history(talker.graph))[-2:] == [("human", "question 1"), ("ai", "half")]


async def test_a_checkpoint_that_does_not_take_its_repair_is_reported():
    class Lost(InMemorySaver):
        async def aput(self, config, checkpoint, metadata, new_versions):  # type: ignore[no-untyped-def]
            return config

    with pytest.raises(RepairFailed):
        await repair(
            StateGraph(MessagesState).add_node("n", print).add_edge(START, "n").compile(Lost()),
            SESSION,
            [turn(1)],
        )


def test_a_turn_that_was_left_out_goes_before_those_behind_it():
    given = [user(1), AIMessage("one", id="a1"), user(3), AIMessage("three", id="a3")]
    messages = normalise(given, [turn(2, status=RunStatus.CANCELLED)], order=["u1", "u2", "u3"])
    assert [message.id for message in messages if isinstance(message, HumanMessage)] == ["u1", "u2", "u3"]
    assert messages[-2:] == given[-2:]


def test_a_turn_that_is_taken_back_takes_none_behind_it_along():
    given = [user(1), AIMessage("one", id="a1"), user(2), AIMessage("two", id="a2")]
    assert normalise(given, [], order=["u1", "u2"], drop=["u1"]) == given[2:]
