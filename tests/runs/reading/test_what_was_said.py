"""Whatever a graph does to its memory, what was said live is what is read later, word for word."""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from runs import operations
from runs.foundation.database import in_thread
from runs.log import transcript
from runs.models import Run, RunEvent
from tests.fakes import Hold, Round, say, text
from tests.runs.harness import Harness, open_harness
from tests.runs.waiting import log_of, terminal, until

Graph = StateGraph[Any, Any, Any, Any]


def _in_a_row(*nodes: Any) -> Graph:
    graph: Graph = StateGraph(MessagesState)
    for before, node in zip([START, *(node.__name__ for node in nodes)], nodes, strict=False):
        graph.add_node(node)
        graph.add_edge(before, node.__name__)
    return graph


def _replying(model: BaseChatModel) -> Any:
    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return reply


def trimming(model: BaseChatModel, tools: Any) -> Graph:
    """Remembers the last two messages."""

    async def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(str(message.id)) for message in state["messages"][:-2]]}

    return _in_a_row(trim, _replying(model))


def summarising(model: BaseChatModel, tools: Any) -> Graph:
    """Puts a summary in place of all that was said, right behind its answer."""

    async def summarise(state: MessagesState) -> dict[str, Any]:
        summary = HumanMessage("Here is a summary.", additional_kwargs={"lc_source": "summarization"})
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), summary, AIMessage("Noted.")]}

    return _in_a_row(_replying(model), summarise)


def rewriting(model: BaseChatModel, tools: Any) -> Graph:
    """Says the user's words anew, without their id."""

    async def rewrite(state: MessagesState) -> dict[str, Any]:
        *before, last = state["messages"]
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *before, HumanMessage(last.content)]}

    return _in_a_row(rewrite, _replying(model))


def routing(model: BaseChatModel, tools: Any) -> Graph:
    """Asks the model where to go, and keeps nothing of it."""

    async def route(state: MessagesState) -> None:
        await model.ainvoke([*state["messages"], HumanMessage("Where to?")])

    return _in_a_row(route, _replying(model))


def plain(model: BaseChatModel, tools: Any) -> Graph:
    """Answers without a model, and with data."""

    async def echo(state: MessagesState) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": f"You said: {state['messages'][-1].text}"}]}

    return _in_a_row(echo)


GRAPHS = (trimming, summarising, rewriting, routing, plain)


async def live(session: str) -> list[str]:
    """What who listened to the events of a session has seen in the end."""
    seen: list[str] = []
    async for run in Run.objects.filter(session=session).order_by("position"):
        turn = transcript.fold(run, await log_of(run.id))
        seen += [turn.user.text, *(message.text for message in turn.answers)]
    return seen


async def turn(harness: Harness, words: str, calls: int) -> None:
    for number in range(calls):
        harness.script.add(say(f"Answer {number + 1} of {calls} to {words}"))
    ended = await terminal(await harness.start(words))
    assert ended.status == "completed", ended.error_message


@pytest.mark.parametrize("build", GRAPHS)
async def test_every_word_is_there_after_any_number_of_turns(engine, alice, serve, tmp_path, build):
    calls = {routing: 2, plain: 0}.get(build, 1)
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        for number in range(4):
            await turn(harness, f"question {number}", calls)
        history = [message["text"] for message in await harness.history()]
        expected: list[str] = []
        for number in range(4):
            answer = f"Answer {calls} of {calls} to question {number}"
            expected += [f"question {number}", f"You said: question {number}" if build is plain else answer]
            expected += ["Noted."] if build is summarising else []
        assert history == expected
        assert history == await live(harness.session)
        pages: list[str] = []
        before = None
        while page := await in_thread(_page, alice, harness.session, before):
            pages = [message["text"] for message in page] + pages
            before = page[0]["id"]
        assert pages == expected
        everything = await operations.history(alice, harness.session, audience=None)
        work = [message["text"] for message in everything["messages"] if message["audience"] == "work"]
        assert len(work) == (4 if build is routing else 0)


def _page(owner: Any, session: str, before: str | None) -> list[Any]:
    from runs.reading import history

    found = operations._session(owner, session)
    return list(history.read_messages(found, limit=3, before=before)["messages"])


@pytest.mark.parametrize("build", GRAPHS[:4])
async def test_what_was_said_until_a_stop_stays_said(engine, alice, serve, tmp_path, build):
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        first = [say("left")] if build is routing else []
        harness.script.add(*first, Round(text("Half of it "), Hold("middle"), text("never said")))
        run_id = await harness.start("question")
        await harness.script.gate("middle").reached()
        told = RunEvent.objects.filter(run=run_id, type="message.delta", data__text="Half of it ")
        await until(told.exists, what="the half")
        assert (await harness.cancelled(run_id)).status == "cancelled"
        said = [message["text"] for message in await harness.history()]
        assert said == ["question", "Half of it "]
        assert said == await live(harness.session)
        harness.script.clear()
        await turn(harness, "and now?", 2 if build is routing else 1)
        assert [message["text"] for message in await harness.history()][:2] == said
