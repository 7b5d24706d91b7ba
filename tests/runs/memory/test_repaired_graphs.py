"""Graphs of any shape are repaired: nested ones, those without a reducer, those with steps of their own."""

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages

from tests.fakes import unsendable
from tests.runs.memory.histories import (
    CONFIG,
    Agent,
    Plain,
    Talker,
    asking,
    assert_repaired,
    called,
    cut,
    finished_tasks,
    said,
    turn,
    user,
    words,
)


class Whole(TypedDict):
    """No reducer: each node writes the whole list."""

    messages: list[AnyMessage]
    notes: Annotated[list[str], operator.add]
    topic: str


async def test_a_channel_without_a_reducer_is_written_whole():
    async def agent(state: Any) -> Any:
        return {"messages": [*state["messages"], asking("c1")]}

    builder = StateGraph(Whole)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"messages": [user()], "topic": "kept"}, CONFIG)
    messages = await assert_repaired(graph, [turn(1, said("a1", calls=[called("c1")]))])
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]


async def test_the_routing_function_of_a_conditional_start_is_not_run():
    def route(state: Any) -> str:
        routed.append(state)
        return "agent"

    routed: list[Any] = []
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", talker.agent)
    builder.add_conditional_edges(START, route, ["agent"])
    builder.add_edge("agent", END)
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await talker.cut()
    seen = len(routed)
    await assert_repaired(talker.graph, [turn(1)])
    assert len(routed) == seen


async def test_a_node_that_waits_for_all_others_does_not_stay_ready():
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", talker.agent)
    builder.add_node("quick", lambda state: {"messages": [AIMessage("quick", id="q")]})
    builder.add_node("last", lambda state: {"messages": [AIMessage("last")]}, defer=True)
    for node in ("agent", "quick"):
        builder.add_edge(START, node)
        builder.add_edge(node, "last")
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await cut(talker.graph, {"messages": [user()]}, lambda: finished_tasks(talker.graph, 1))
    messages = await assert_repaired(talker.graph, [turn(1)])
    assert words(messages) == [("human", "question 1"), ("ai", "quick")]


class Narrow(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def test_what_finished_tools_wrote_beyond_the_input_schema_stays():
    agent = Agent(Plain, {"c1"})
    builder = StateGraph(Plain, input_schema=Narrow)
    builder.add_node("agent", agent.agent)
    builder.add_node("tool", agent.tool)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", agent.route, ["tool", END])
    builder.add_edge("tool", "agent")
    agent.graph = builder.compile(checkpointer=InMemorySaver())
    await agent.cut()
    await assert_repaired(agent.graph, [turn(1, said("a1"))])
    assert sorted((await agent.graph.aget_state(CONFIG)).values["notes"]) == ["c0", "c2"]


@pytest.mark.parametrize("memory", [None, True], ids=["of the step", "of its own"])
async def test_a_nested_graph_is_repaired_with_the_graph(memory):
    inner = Agent(Plain, {"c1"})
    nested = StateGraph(Plain)
    nested.add_node("agent", inner.agent)
    nested.add_node("tool", inner.tool)
    nested.add_edge(START, "agent")
    nested.add_conditional_edges("agent", inner.route, ["tool", END])
    nested.add_edge("tool", "agent")
    outer = StateGraph(Plain)
    outer.add_node("inner", nested.compile(checkpointer=memory))
    outer.add_edge(START, "inner")
    inner.graph = outer.compile(checkpointer=InMemorySaver())

    async def until() -> None:
        await inner.all_running.wait()
        await finished_tasks(inner.graph, 2)

    await cut(inner.graph, {"messages": [user()], "notes": [], "topic": "kept"}, until)
    calls = [called(call, started=True) for call in inner.calls]
    asked = said("a1", calls=calls, node="agent", namespace=["inner:1234"])
    messages = await assert_repaired(inner.graph, [turn(1, asked)])
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    assert [message.text.startswith("real") for message in messages[2:5]] == [True, False, True]
    # The nested agent keeps its own copy of the conversation if it has a memory.
    await inner.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    assert unsendable(inner.seen[-1]) is None
    assert words(inner.seen[-1])[-1] == ("human", "question 2")


async def test_words_that_the_graph_left_out_on_purpose_stay_out():
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("router", lambda state: {})
    builder.add_node("agent", talker.agent)
    builder.add_edge(START, "router")
    builder.add_edge("router", "agent")
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await talker.cut()
    log = [said("r", "billing", node="router"), said("m", "You ow", "interrupted", node="agent")]
    messages = await assert_repaired(talker.graph, [turn(1, *log)])
    assert words(messages)[1:] == [("ai", "You ow")]
