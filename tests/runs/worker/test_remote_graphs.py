"""A node that is a graph on another server: it works, and what goes wrong there costs one turn."""

import asyncio
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph

from runs import agents, operations
from runs.foundation.database import in_thread
from runs.models import ToolCall
from tests.fakes import calls, plain_graph
from tests.fakes.elsewhere import SECRET, open_elsewhere
from tests.runs.harness import open_harness
from tests.runs.waiting import status, terminal, until


@pytest.fixture
def elsewhere():
    with open_elsewhere() as server:
        yield server


def as_node(remote):
    return remote


def called_in_a_thread(remote):
    def call(state: MessagesState, config: RunnableConfig) -> Any:
        return remote.invoke(state, config)

    return call


@pytest.fixture
def node(request):
    """How the graph uses the remote one."""
    return getattr(request, "param", as_node)


@pytest.fixture
async def turn(engine, alice, serve, elsewhere, node):
    def build() -> StateGraph[Any, Any, Any, Any]:
        graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
        graph.add_node("remote", node(RemoteGraph("agent", url=elsewhere.url)))
        graph.add_edge(START, "remote")
        return graph

    serve(build)
    session = await in_thread(operations.create_session, alice)

    async def start(words: str) -> str:
        return (await in_thread(operations.start_turn, alice, session["id"], words))["id"]

    async def texts() -> list[str]:
        return [message["text"] for message in (await operations.history(alice, session["id"]))["messages"]]

    start.texts = texts  # type: ignore[attr-defined]
    return start


@pytest.mark.parametrize("node", [as_node, called_in_a_thread], indirect=True)
async def test_what_a_remote_graph_says_is_said_here(turn, elsewhere):
    assert (await terminal(await turn("one"))).status == "completed"
    assert (await terminal(await turn("two"))).status == "completed"
    assert await turn.texts() == ["one", "Elsewhere: one", "two", "Elsewhere: two"]
    assert len(elsewhere.runs) == 2


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (401, "A remote graph refused the credentials of this server."),
        (422, "A remote graph refused the request (422)."),
        (503, "A remote graph had an error of its own (503)."),
        ("breaks", "A remote graph failed."),
        ("cut", "A remote graph broke off."),
        ("silent", "A remote graph said nothing for 0.6 seconds."),
    ],
)
async def test_a_remote_graph_that_fails_costs_one_turn(turn, elsewhere, settings, how, sentence):
    settings.RUNS_IDLE_TIMEOUT, settings.RUNS_TOOL_TIMEOUT = 0.3, 0.6
    elsewhere.how = how
    failed = await terminal(await turn("one"))
    assert (failed.status, failed.error_code) == ("failed", "provider")
    assert failed.error_message == sentence
    elsewhere.how = "well"
    assert (await terminal(await turn("two"))).status == "completed"
    texts = await turn.texts()
    assert (texts[0], texts[-2:]) == ("one", ["two", "Elsewhere: two"])
    assert SECRET not in str(texts)


async def test_a_remote_graph_that_cannot_be_reached_costs_one_turn(turn, elsewhere):
    elsewhere.close()
    failed = await terminal(await turn("one"), 30)
    assert (failed.status, failed.error_code) == ("failed", "provider")
    assert failed.error_message == "A remote graph cannot be reached."
    assert (await turn.texts())[0] == "one"


async def test_words_of_its_models_show_that_a_remote_graph_is_at_work(turn, elsewhere, settings):
    settings.RUNS_IDLE_TIMEOUT, settings.RUNS_TOOL_TIMEOUT = 0.3, 0.6
    elsewhere.how = "slow"
    assert (await terminal(await turn("one"))).status == "completed"
    assert await turn.texts() == ["one", "Elsewhere: one"]


async def test_a_cancel_ends_a_remote_graph_and_the_next_turn_works(turn, elsewhere, alice):
    elsewhere.how = "silent"
    run = await turn("one")
    await until(lambda: elsewhere.runs, what="the call")
    await in_thread(operations.cancel_run, alice, run)
    assert (await terminal(run)).status == "cancelled"
    assert await asyncio.to_thread(elsewhere.left.wait, 10)
    assert elsewhere.runs[0]["on_disconnect"] == "cancel"
    elsewhere.how = "well"
    assert (await terminal(await turn("two"))).status == "completed"


async def test_a_remote_graph_asks_the_user_and_gets_the_answer(turn, elsewhere, alice):
    elsewhere.how = "asks"
    run = await status(await turn("one"), "waiting")
    (question,) = run.questions
    assert question["value"] == "Really?"
    await in_thread(operations.answer, alice, run.id, {question["id"]: "yes"})
    assert (await terminal(run.id)).status == "completed"
    assert await turn.texts() == ["one", "Elsewhere: one yes"]
    assert elsewhere.others == []


async def test_what_a_remote_graph_did_that_a_tool_called_is_unknown_after_a_cancel(
    engine, alice, serve, elsewhere, tmp_path
):
    elsewhere.how = "silent"
    remote = RemoteGraph("agent", url=elsewhere.url)

    @tool
    async def ask_elsewhere(config: RunnableConfig) -> str:
        """Ask a graph on another server."""
        return str(await remote.ainvoke({"messages": [{"role": "user", "content": "hello"}]}, config))

    def build(model, tools):
        return plain_graph(model, [ask_elsewhere])

    rounds = [calls(("ask_elsewhere", {}))]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        run = await harness.start()
        await until(lambda: elsewhere.runs, what="the call")
        await harness.cancelled((await harness.cancel(run))["run"])
        assert await asyncio.to_thread(elsewhere.left.wait, 10)
        assert (await in_thread(ToolCall.objects.get)).effect == "unknown"
        await harness.assert_sendable()


async def test_reading_a_state_asks_no_remote_graph(turn, elsewhere):
    graph = agents.load(agents.names()[0]).graph_on(InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    elsewhere.how = 500
    with pytest.raises(httpx.HTTPStatusError):
        await graph.ainvoke({"messages": [("user", "one")]}, config)
    assert (await graph.aget_state(config, subgraphs=True)).next == ("remote",)
    assert elsewhere.others == []


async def test_an_agent_may_catch_what_a_remote_graph_raises(engine, alice, serve, elsewhere):
    remote = RemoteGraph("agent", url=elsewhere.url)

    async def careful(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        try:
            return await remote.ainvoke(state, config)
        except RemoteException:
            return {"messages": [("ai", "Later.")]}

    def build() -> StateGraph[Any, Any, Any, Any]:
        graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
        graph.add_node("careful", careful)
        graph.add_edge(START, "careful")
        return graph

    serve(build)
    elsewhere.how = "breaks"
    session = await in_thread(operations.create_session, alice)
    run = await in_thread(operations.start_turn, alice, session["id"], "one")
    assert (await terminal(run["id"])).status == "completed"
