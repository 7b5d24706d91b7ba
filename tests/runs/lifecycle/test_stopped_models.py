"""A cancel stops the model, in the middle of an answer as before its first word."""

import asyncio
from contextlib import suppress

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import START, MessagesState, StateGraph

from runs.worker import graph_input
from tests.fakes import (
    Round,
    Silence,
    numbered,
)
from tests.runs.waiting import PATIENCE, event


async def test_a_stream_is_closed_although_something_still_refers_to_it(harness, serve):
    """Its reader was cancelled while it handled an item, and nobody closes what may still be read."""
    closed = asyncio.Event()

    async def stream():
        try:
            while True:
                yield "item"
        finally:
            closed.set()

    run_id = await _reading(harness, serve, stream())

    assert (await harness.cancelled(run_id)).status == "cancelled"

    assert closed.is_set()


async def _reading(harness, serve, stream):
    """A run that handles an item of this stream, to which something else refers, too."""
    reading = asyncio.Event()

    async def node(state):
        async for _ in stream:
            reading.set()
            await asyncio.Event().wait()

    serve(lambda: StateGraph(MessagesState).add_node("node", node).add_edge(START, "node"))
    run_id = await harness.start()
    await reading.wait()
    return run_id


async def test_a_stream_that_will_not_be_closed_holds_the_run_for_a_while_only(harness, serve, settings):
    """Its cleaning up swallows every cancel."""
    settings.RUNS_CANCEL_GRACE = 0.5
    may_close = asyncio.Event()

    async def stream():
        try:
            while True:
                yield "item"
        finally:
            while not may_close.is_set():
                with suppress(asyncio.CancelledError):
                    await may_close.wait()

    run_id = await _reading(harness, serve, stream())

    try:
        assert (await harness.cancelled(run_id)).status == "cancelled"
    finally:
        may_close.set()


class Deaf(BaseChatModel):
    """A model whose client swallows the first cancel."""

    @property
    def _llm_type(self):
        return "deaf"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        raise NotImplementedError

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        has_heard = False
        while True:
            yield ChatGenerationChunk(message=AIMessageChunk("word "))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if has_heard:
                    raise
                has_heard = True


async def test_a_client_that_swallows_the_cancel_is_stopped_at_its_next_piece(harness, serve, settings):
    settings.RUNS_CANCEL_GRACE = 120

    async def node(state):
        return {"messages": [await Deaf().ainvoke(state["messages"])]}

    serve(lambda: StateGraph(MessagesState).add_node("node", node).add_edge(START, "node"))
    run_id = await harness.start()
    await event(run_id, "message.delta")

    ended = await harness.cancelled(run_id, 10 * PATIENCE)

    assert ended.status == "cancelled"


async def test_the_provider_sees_its_stream_closed(harness):
    harness.script.add(Round(numbered(3), Silence()))
    run_id = await harness.start()
    await harness.ledger.streamed(3)

    ended = await harness.cancelled(run_id)

    assert ended.status == "cancelled"
    await harness.ledger.ended(1)
    assert harness.provider.calls[0].outcome == "closed"


async def test_stop_works_during_the_silence_before_the_first_token(harness):
    harness.script.add(Round(Silence()))
    run_id = await harness.start()
    await harness.ledger.called(1)

    assert (await harness.cancelled(run_id)).status == "cancelled"
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_cancel_before_the_first_step_makes_no_llm_call(harness, monkeypatch):
    begin, beginning = graph_input.begin, asyncio.Event()

    async def begin_until_it_is_stopped(graph, saver, turn):
        beginning.set()
        [execution] = harness.engine.executions.values()
        await asyncio.wait([execution._stop])
        return await begin(graph, saver, turn)

    monkeypatch.setattr(graph_input, "begin", begin_until_it_is_stopped)
    run_id = await harness.start("hello")
    await beginning.wait()
    ended = await harness.cancelled(run_id)
    monkeypatch.setattr(graph_input, "begin", begin)

    assert ended.status == "cancelled"
    assert harness.provider.calls == []
    assert [m["text"] for m in await harness.history() if m["role"] == "user"] == ["hello"]
    await harness.assert_next_completes()


async def test_what_fails_because_of_the_stop_is_no_failure(harness, serve):
    working = asyncio.Event()

    async def node(state):
        working.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("closed in the middle") from None

    serve(lambda: StateGraph(MessagesState).add_node("node", node).add_edge(START, "node"))
    run_id = await harness.start()
    await working.wait()

    ended = await harness.cancelled(run_id)

    assert (ended.status, ended.error_code) == ("cancelled", None)
