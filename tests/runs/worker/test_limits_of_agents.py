"""How many steps a run may take: the agent says it, up to a ceiling."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from runs import agents, operations
from runs.foundation.database import in_thread
from tests.fakes import call, say
from tests.runs.harness import open_harness
from tests.runs.waiting import terminal


def going_round(rounds: int) -> StateGraph[Any, Any, Any, Any]:
    """A graph that takes so many steps."""

    def again(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"round {len(state['messages'])}")]}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("again", again)
    graph.add_edge(START, "again")
    graph.add_conditional_edges(
        "again", lambda state: "again" if len(state["messages"]) <= rounds else "__end__"
    )
    return graph


async def ended(owner: Any) -> Any:
    session = await in_thread(operations.create_session, owner)
    run = await in_thread(operations.start_turn, owner, session["id"], "go")
    return await terminal(run["id"], 30)


async def test_an_agent_without_a_limit_of_its_own_may_go_on_for_long(engine, alice, serve):
    serve(lambda: going_round(200))
    assert (await ended(alice)).status == "completed"


@pytest.mark.parametrize(
    "build",
    [
        agents.agent(recursion_limit=5)(lambda: going_round(20)),
        lambda: going_round(20).compile().with_config(recursion_limit=5),
    ],
    ids=["policy", "compiled"],
)
async def test_the_agents_own_limit_counts_and_is_named(engine, alice, serve, build):
    serve(build)
    run = await ended(alice)
    assert (run.status, run.error_code) == ("failed", "step_limit")
    assert "5 steps" in run.error_message


async def test_no_agent_gets_beyond_the_ceiling(engine, alice, serve, settings):
    settings.RUNS_STEP_LIMIT = 7
    serve(agents.agent(recursion_limit=100)(lambda: going_round(20)))
    run = await ended(alice)
    assert run.error_code == "step_limit"
    assert "7 steps" in run.error_message


@pytest.mark.parametrize("is_node", [True, False], ids=["a node", "called by a node"])
async def test_a_graph_inside_keeps_its_own_limit(engine, alice, serve, is_node):
    inner = going_round(20).compile().with_config(recursion_limit=5)

    async def call_inner(state: MessagesState, config: RunnableConfig) -> Any:
        return await inner.ainvoke(state, config)

    def build() -> StateGraph[Any, Any, Any, Any]:
        graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
        graph.add_node("inner", inner if is_node else call_inner)
        graph.add_edge(START, "inner")
        return graph

    serve(build)
    run = await ended(alice)
    assert run.error_code == "step_limit"
    assert "5 steps" in run.error_message


async def test_a_compiled_agent_with_middlewares_calls_many_tools(engine, alice, serve, tmp_path):
    """What ``create_agent`` returns, as it is: each round goes through a step for each middleware."""
    from langchain.agents.middleware import (
        ModelCallLimitMiddleware,
        SummarizationMiddleware,
        TodoListMiddleware,
        ToolCallLimitMiddleware,
    )

    def build(model: Any, tools: Any) -> Any:
        middleware: list[Any] = [
            TodoListMiddleware(),
            SummarizationMiddleware(model),
            ModelCallLimitMiddleware(run_limit=100),
            ToolCallLimitMiddleware(run_limit=100),
        ]
        return create_agent(model, tools, middleware=middleware)

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(*(call("mark", x=str(number)) for number in range(12)), say("Done."))
        assert (await terminal(await harness.start(), 30)).status == "completed"
        assert len(harness.marks.read()) == 12
