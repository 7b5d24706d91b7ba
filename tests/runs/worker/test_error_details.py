"""What is raised in a turn is for operators: its user gets a code and a sentence, and no word of it."""

import json
import logging

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.serde.types import ERROR
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from runs import operations
from runs.foundation.database import in_thread
from runs.foundation.exceptions import DETAILS_LIMIT, TRACEBACK_LIMIT
from runs.models import Run, ToolCall
from runs.states import EventType
from runs.translation import bounds
from runs.wire import representations
from tests.fakes import (
    HOSTILE,
    SECRETS,
    WORD,
    Leaving,
    ScriptedModel,
    Unspeakable,
    call,
    calls,
    plain_graph,
    say,
)
from tests.runs.harness import open_harness
from tests.runs.waiting import log_of, terminal, until

each_kind = pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)


def node_graph(error):
    def build(model, tools):
        def node(state):
            raise error

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph

    return build


def model_graph(error):
    class Raising(ScriptedModel):
        def _open(self, messages):
            raise error

    return lambda model, tools: plain_graph(Raising(), tools)


def raising_tool(error, is_async):
    if is_async:

        @tool
        async def work() -> str:
            """Work."""
            raise error
    else:

        @tool
        def work() -> str:
            """Work."""
            raise error

    return work


def tool_graph(error, is_async, handle_tool_errors=False):
    def build(model, tools):
        return plain_graph(model, [raising_tool(error, is_async)], handle_tool_errors=handle_tool_errors)

    return build


def by_hand_graph(error):
    """A node that runs a tool nobody asked for."""
    work = raising_tool(error, is_async=True)

    def build(model, tools):
        async def node(state):
            await work.ainvoke({})

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph

    return build


PLACES = {
    "node": (node_graph, "internal"),
    "model": (model_graph, "provider"),
    "tool in a thread": (lambda error: tool_graph(error, False), "tool"),
    "tool on the loop": (lambda error: tool_graph(error, True), "tool"),
    "tool run by hand": (by_hand_graph, "tool"),
}


async def told(harness, run_id):
    """All that the user is told of a run."""
    run = await in_thread(lambda: representations.run(Run.objects.get(id=run_id)))
    events = [(event.type, event.data) for event in await log_of(run_id)]
    return json.dumps([run, events, await harness.history()], ensure_ascii=False, default=str)


@each_kind
@pytest.mark.parametrize(("place", "code"), PLACES.values(), ids=PLACES)
async def test_the_user_is_told_no_word_of_it_and_operators_are(
    engine, alice, serve, tmp_path, caplog, make, place, code
):
    caplog.set_level(logging.INFO, "runs")
    error = make()
    async with open_harness(alice, serve, tmp_path / "marks", build=place(error)) as harness:
        harness.script.add(call("work"))
        ended = await terminal(await harness.start())

        assert (ended.status, ended.error_code) == ("failed", code)
        assert ended.error_message.endswith(".")
        said = await told(harness, ended.id)
        assert type(error).__name__ not in said
        assert not any(word in said for word in (WORD, *SECRETS, "xxxx", "\0"))

        assert type(error).__name__ in ended.error_details
        assert len(ended.error_details) <= DETAILS_LIMIT
        is_readable = not isinstance(error, Unspeakable)
        assert (WORD in ended.error_details) == is_readable
        log = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("runs."))
        assert len(log) < 3 * TRACEBACK_LIMIT
        assert type(error).__name__ in log
        assert (WORD in log) == is_readable
        for text in (ended.error_details, log):
            text.encode()
            assert not any(secret in text for secret in SECRETS)
            assert "\0" not in text
        await harness.assert_sendable()


@each_kind
@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "on the loop"])
async def test_what_the_model_is_told_of_a_tool_stays_and_is_masked_where_it_is_shown(
    engine, alice, serve, tmp_path, make, is_async
):
    error = make()
    build = tool_graph(error, is_async, handle_tool_errors=True)
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(call("work"), say("Never mind."))
        ended = await terminal(await harness.start(stream_modes=["updates"]))
        said = await told(harness, ended.id)
        assert not any(secret in said for secret in SECRETS)
        said.encode()
        row = await in_thread(ToolCall.objects.get)
        assert row.status == "failed"
        assert ended.status == "completed"
        (result,) = [message for message in await harness.state() if message.type == "tool"]
        if isinstance(error, Unspeakable):
            assert result.content.startswith("Error: RuntimeError('no text')")
        else:
            whole = f"Error: {error!r}\n Please fix your mistakes."
            assert result.content == bounds._bounded_content(whole)
            assert row.error[:30] == whole[:30]
        assert harness.provider.calls[-1].messages[-1]["content"] == result.content


@each_kind
async def test_what_a_middleware_puts_in_the_place_of_an_error_is_masked(
    engine, alice, serve, tmp_path, make
):
    """As LangChain's documentation has it: the message quotes the error and does not say that it is one."""
    error = make()

    @wrap_tool_call
    async def tell(request, handler):
        try:
            return await handler(request)
        except Exception as raised:
            return ToolMessage(f"Try again. ({raised!r})", tool_call_id=request.tool_call["id"])

    def build(model, tools):
        return create_agent(model, [raising_tool(error, True)], middleware=[tell]).builder

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(call("work"), say("Never mind."))
        ended = await terminal(await harness.start(stream_modes=["updates"]))
        said = await told(harness, ended.id)
        assert not any(secret in said for secret in SECRETS)
        if not isinstance(error, Unspeakable):
            assert ended.status == "completed"
            assert "Try again." in said
            (result,) = [message for message in await harness.state() if message.type == "tool"]
            assert result.content == bounds._bounded_content(f"Try again. ({error!r})")


async def test_a_failed_result_that_is_given_again_has_its_secrets(engine, alice, serve, tmp_path):
    """Its step starts over, since its sibling asks the user. The log has it masked only."""

    error = RuntimeError(f"{WORD} {SECRETS[0]}")

    def build(model, tools):
        asking = next(one for one in tools if one.name == "ask")
        return plain_graph(model, [raising_tool(error, False), asking])

    rounds = [calls(("work", {}), ("ask", {"question": "Really?"})), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        run_id = await harness.start()
        await until(Run.objects.filter(id=run_id, status="waiting").exists)
        (asked,) = (await harness.run(run_id)).questions
        await in_thread(operations.answer, alice, run_id, {asked["id"]: "Yes"})
        assert (await terminal(run_id)).status == "completed"
        first = next(message for message in await harness.state() if message.type == "tool")
        assert SECRETS[0] in first.content
        assert SECRETS[0] not in await told(harness, run_id)


@each_kind
async def test_the_checkpoint_keeps_what_was_raised_masked(engine, alice, serve, tmp_path, make):
    error = make()
    async with open_harness(alice, serve, tmp_path / "marks", build=node_graph(error)) as harness:
        await terminal(await harness.start())
        thread = {"configurable": {"thread_id": harness.session}}
        saved = [one async for one in harness.engine.checkpoints.reader().alist(thread)]
        kept = [value for one in saved for _, channel, value in one.pending_writes or () if channel == ERROR]
        assert kept
        for text in kept:
            assert type(error).__name__ in text
            assert len(text) <= DETAILS_LIMIT
            assert not any(secret in text for secret in SECRETS)


async def test_an_exception_may_bring_a_sentence_for_the_user(engine, alice, serve, tmp_path):
    class Closed(Exception):
        error_code = "tool"
        user_message = f"The shop is\n closed today, {SECRETS[0]}."

    async with open_harness(alice, serve, tmp_path / "marks", build=node_graph(Closed(WORD))) as harness:
        ended = await terminal(await harness.start())
        assert (ended.error_code, ended.error_message) == ("tool", "The shop is closed today, ***.")
        assert f"Closed: {WORD}" in ended.error_details
    Closed.user_message = None
    async with open_harness(alice, serve, tmp_path / "more", build=node_graph(Closed(WORD))) as harness:
        ended = await terminal(await harness.start())
        assert ended.error_message.startswith("A tool failed")


async def test_an_agent_that_cannot_be_built_fails_with_details(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as harness:
        make = HOSTILE["with secrets"]

        def build():
            raise make()

        serve(build)
        ended = await terminal(await harness.start())
        assert (ended.status, ended.error_code) == ("failed", "internal")
        assert WORD not in ended.error_message
        assert f"RuntimeError: {WORD}" in ended.error_details
        assert not any(secret in ended.error_details for secret in SECRETS)


@pytest.mark.parametrize("wordless", [Unspeakable, Leaving])
async def test_an_answer_that_is_refused_without_words_is_asked_for_again(
    engine, alice, serve, tmp_path, wordless
):

    class Wordless(ValueError):
        __str__ = wordless.__str__
        __repr__ = __str__

    def build(model, tools):
        def node(state):
            if interrupt("Which?") != "this":
                raise Wordless
            return {}

        graph = StateGraph(MessagesState)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        return graph

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        run_id = await harness.start()
        await until(Run.objects.filter(id=run_id, status="waiting", claim=1).exists)
        (asked,) = (await harness.run(run_id)).questions
        await in_thread(operations.answer, alice, run_id, {asked["id"]: "that"})
        await until(Run.objects.filter(id=run_id, status="waiting", claim=2).exists)
        again = [one for one in await log_of(run_id) if one.type == EventType.RUN_WAITING][-1]
        assert again.data["reason"] == "The agent did not accept the answer."
