"""Graphs that remove, rewrite or break their own memory: their turns go on, and end, where they are."""

import asyncio
import operator
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import interrupt

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Session
from runs.reading import inspection
from tests.fakes import Hold, Round, say, text
from tests.runs.harness import Harness, open_harness
from tests.runs.waiting import status, terminal

Graph = StateGraph[Any, Any, Any, Any]


class State(MessagesState):
    """Beside the messages, something that only one task of a step may write, and something that adds up."""

    plain: str
    visits: Annotated[int, operator.add]


def _in_a_row(*nodes: Any) -> Graph:
    graph: Graph = StateGraph(State)
    for before, node in zip([START, *(node.__name__ for node in nodes)], nodes, strict=False):
        graph.add_node(node)
        graph.add_edge(before, node.__name__)
    return graph


def _replying(model: BaseChatModel) -> Any:
    async def reply(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return reply


async def rewrite(state: State) -> dict[str, Any]:
    """The user's words anew, without their id."""
    *before, last = state["messages"]
    return {
        "messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *before, HumanMessage(last.content)],
        "visits": 1,
    }


async def ask(state: State) -> dict[str, Any]:
    return {"messages": [AIMessage(f"You said {interrupt('Really?')}.")]}


async def summarise(state: State) -> dict[str, Any]:
    """A summary in place of all that was said, in the middle of the turn."""
    return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("A summary.")], "visits": 1}


def rewriting(model: BaseChatModel, tools: Any) -> Graph:
    return _in_a_row(rewrite, ask)


def summarising(model: BaseChatModel, tools: Any) -> Graph:
    first = _replying(model)

    async def think(state: State) -> dict[str, Any]:
        return await first(state)

    return _in_a_row(think, summarise, _replying(model))


async def state_of(harness: Harness) -> dict[str, Any]:
    from runs import agents

    graph = agents.load("assistant").graph_on(harness.engine.checkpoints.reader())
    return (await graph.aget_state({"configurable": {"thread_id": harness.session}})).values


async def test_an_answer_reaches_the_node_that_asked_although_the_users_message_was_rewritten(
    engine, alice, serve, tmp_path
):
    async with open_harness(alice, serve, tmp_path / "marks", build=rewriting) as harness:
        run_id = await harness.start("question")
        asked = await status(run_id, "waiting")
        answers = {asked.questions[0]["id"]: "yes"}
        await in_thread(operations.answer, alice, run_id, answers)
        assert (await terminal(run_id)).status == "completed"
        assert [message["text"] for message in await harness.history()] == ["question", "You said yes."]
        assert (await state_of(harness))["visits"] == 1, "it did not start over"


async def test_a_turn_that_is_cut_behind_its_summary_leaves_the_summary_and_nothing_twice(
    engine, alice, serve, tmp_path
):
    async with open_harness(alice, serve, tmp_path / "marks", build=summarising) as harness:
        harness.script.add(say("First."), Round(text("Half "), Hold("middle"), text("never")))
        run_id = await harness.start("question")
        await harness.script.gate("middle").reached()
        assert (await harness.cancelled(run_id)).status == "cancelled"
        known = [message.text for message in await harness.state()]
        assert known[0] == "A summary."
        assert "question" not in known
        assert "First." not in known
        assert known.count("Half ") == 1
        said = [message["text"] for message in await harness.history()]
        assert said[:2] == ["question", "First."]
        harness.script.clear()
        await harness.assert_sendable()


async def remove_nobody(state: State) -> dict[str, Any]:
    return {"messages": [RemoveMessage("nobody")]}


async def write_plain(state: State) -> dict[str, Any]:
    return {"plain": "one"}


async def write_plain_too(state: State) -> dict[str, Any]:
    return {"plain": "two"}


async def say_something_odd(state: State) -> dict[str, Any]:
    return {"messages": [{"role": "nobody", "content": "?"}]}


@pytest.mark.parametrize(
    "refused",
    [(remove_nobody,), (write_plain, write_plain_too), (say_something_odd,)],
    ids=lambda nodes: nodes[0].__name__,
)
async def test_an_update_that_a_reducer_refuses_costs_one_turn(engine, alice, serve, tmp_path, refused):
    is_good = asyncio.Event()

    def build(model: BaseChatModel, tools: Any) -> Graph:
        graph: Graph = StateGraph(State)
        graph.add_node(_replying(model))
        graph.add_edge(START, "reply")
        for node in refused:

            async def misbehave(state: State, node: Any = node) -> Any:
                return {} if is_good.is_set() else await node(state)

            graph.add_node(node.__name__, misbehave)
            graph.add_edge("reply", node.__name__)
        return graph

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(say("First."))
        assert (await terminal(await harness.start("one"))).status == "failed"
        assert [message["text"] for message in await harness.history()] == ["one", "First."]
        session = await in_thread(Session.objects.get, id=harness.session)
        assert (await inspection.inspect(session)).messages, "an operator can look at it"
        is_good.set()
        harness.script.add(say("Second."))
        assert (await terminal(await harness.start("two"))).status == "completed"
        assert [message["text"] for message in await harness.history()] == ["one", "First.", "two", "Second."]
        assert [message.text for message in await harness.state()] == ["one", "First.", "two", "Second."]
