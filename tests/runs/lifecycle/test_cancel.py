"""Cancel on live executions: what stops, what is kept, what the next turn finds."""

import asyncio
import random
import threading
import time
from contextlib import suppress
from uuid import UUID

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.graph import START, MessagesState, StateGraph

from runs import operations
from runs.foundation.database import in_thread
from runs.lifecycle import questions
from runs.models import Cancellation, RunEvent, Session, ToolCall
from runs.worker import graph_input
from tests.fakes import (
    SHAPES,
    Hold,
    Round,
    Silence,
    call,
    calls,
    fan_out_graph,
    numbered,
    plain_graph,
    say,
    sequential_graph,
    spelled,
    text,
    words,
)
from tests.runs.harness import open_harness
from tests.runs.waiting import PATIENCE, event, log_of, status, terminal, until


@pytest.fixture
def release():
    """Ends every hanging tool when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(params=SHAPES, ids=str)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture
async def harness(engine, alice, serve, tmp_path, release):
    async with open_harness(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened


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


async def test_a_stream_that_will_not_be_closed_holds_the_run_for_a_while_only(
    harness, serve, settings, release
):
    """Its cleaning up swallows every cancel."""
    settings.RUNS_CANCEL_GRACE = 0.5

    async def stream():
        try:
            while True:
                yield "item"
        finally:
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.02)

    run_id = await _reading(harness, serve, stream())

    assert (await harness.cancelled(run_id)).status == "cancelled"


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
                await asyncio.sleep(0.01)
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


async def test_stop_keeps_the_words_already_shown(engine, alice, serve, tmp_path, shape):
    async with open_harness(alice, serve, tmp_path / "marks", build=shape) as harness:
        harness.script.add(Round(numbered(40), Hold("middle"), numbered(10)))
        run_id = await harness.start("count")
        await harness.script.gate("middle").reached()
        await until(lambda: "w40" in _told(run_id))

        ended = await harness.cancelled(run_id)

        assert ended.status == "cancelled"
        shown = " ".join(f"w{n}" for n in range(1, 41))
        assert await in_thread(_told, run_id) == shown
        answer = (await harness.history())[-1]
        assert (answer["role"], answer["text"], answer["status"]) == ("assistant", shown, "interrupted")
        assert [m.text for m in await harness.state()][-1] == shown
        await harness.assert_next_completes()
        assert harness.provider.calls[-1].messages[-2]["content"] == shown


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


async def test_cancel_in_an_async_tool_answers_its_call(engine, alice, serve, tmp_path, shape):
    async with open_harness(
        alice, serve, tmp_path / "marks", build=shape, strict_user_after_tool=True
    ) as harness:
        harness.script.add(call("slow_async", seconds=30))
        run_id = await harness.start()
        await harness.marks.seen("slow_async started")

        ended = await harness.cancelled(run_id)

        assert ended.status == "cancelled"
        row = await in_thread(ToolCall.objects.get)
        assert (row.status, row.effect) == ("cancelled", "unknown")
        await harness.assert_sendable()
        for _ in range(3):
            await harness.assert_next_completes()
        assert "slow_async ended" not in harness.marks.read()


async def test_a_blocking_tool_holds_the_run_for_the_grace_time_and_its_result_goes_nowhere(
    harness, settings, release
):
    settings.RUNS_CANCEL_GRACE = 0.5
    harness.script.add(call("slow_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("slow_sync started")

    began = time.monotonic()
    ended = await harness.cancelled(run_id)
    assert time.monotonic() - began < 4 * PATIENCE

    assert ended.status == "cancelled"
    log = [e.type for e in await log_of(run_id)]
    row = await in_thread(ToolCall.objects.get)
    assert (row.status, row.effect) == ("cancelled", "unknown")
    assert (await in_thread(Cancellation.objects.get)).escalated is True
    before = [m.model_dump() for m in await harness.state()]
    release.set()
    await harness.marks.seen("slow_sync ended")
    await until(lambda: ToolCall.objects.get().effect == "done", what="the straggler's effect")
    assert [e.type for e in await log_of(run_id)] == log
    assert [m.model_dump() for m in await harness.state()] == before
    await harness.assert_next_completes()


async def test_a_tool_that_ends_while_its_run_is_being_ended_is_no_straggler(
    harness, settings, release, monkeypatch
):
    """It was given up on, comes to its result, and what notes that waits for the end of the run."""
    settings.RUNS_CANCEL_GRACE = 0.1
    repair, ending, go_on = graph_input.repair_own, asyncio.Event(), asyncio.Event()

    async def repair_slowly(*args):
        ending.set()
        await go_on.wait()
        await repair(*args)

    monkeypatch.setattr(graph_input, "repair_own", repair_slowly)
    harness.script.add(call("slow_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("slow_sync started")
    [execution] = harness.engine.executions.values()
    await harness.cancel(run_id)
    await ending.wait()

    release.set()
    while execution.token.activity.stragglers():
        time.sleep(0.01)  # noqa: ASYNC251 (the loop hears of the result when the thread is gone)
    go_on.set()

    assert (await terminal(run_id)).status == "cancelled"
    await until(lambda: ToolCall.objects.get().effect == "done", what="the straggler's effect")
    await until(lambda: not harness.engine.stragglers, 2, "the end of every straggler")


async def test_a_run_that_its_own_checkpoint_finds_lost_leaves_nothing_at_work(harness, serve):
    """Nobody has told the execution: its saver is the first to find out."""
    begun, go_on, left = asyncio.Event(), asyncio.Event(), []

    async def begin_something(state):
        left.append(asyncio.create_task(asyncio.sleep(60)))
        begun.set()
        await go_on.wait()
        return {"messages": [AIMessage("It goes on.")]}

    graph = StateGraph(MessagesState).add_node(begin_something).add_edge(START, "begin_something")
    serve(lambda: graph)
    await harness.start()
    await begun.wait()
    [execution] = harness.engine.executions.values()

    await execution._saver.fence()
    go_on.set()

    await asyncio.wait_for(execution.ended.wait(), 10 * PATIENCE)
    assert left[0].cancelled()


async def test_a_blocking_tool_that_heeds_the_token_ends_at_once(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    await harness.cancelled(run_id)

    assert "heeding_sync cancelled" in harness.marks.read()
    assert (await in_thread(Cancellation.objects.get)).escalated is False


async def test_a_process_started_through_the_token_ends_with_its_group(harness):
    harness.script.add(call("spawn", seconds=3))
    run_id = await harness.start()
    await harness.marks.seen("spawn started")

    await harness.cancelled(run_id)
    await asyncio.sleep(4)  # longer than its grandchild would have slept

    assert "spawn ended" not in harness.marks.read()
    assert (await in_thread(Cancellation.objects.get)).escalated is False


async def test_the_next_turn_starts_at_once_and_is_not_disturbed(harness, settings, release):
    settings.RUNS_CANCEL_GRACE = 0.2
    harness.script.add(call("hang"))
    run_id = await harness.start()
    await harness.marks.seen("hang started")
    await harness.cancelled(run_id)

    harness.script.add(Round(numbered(5), Hold("next"), text(" end")))
    second = await harness.start("second")
    await harness.script.gate("next").reached()
    release.set()
    await harness.marks.seen("hang ended")
    harness.script.gate("next").open()

    assert (await terminal(second)).status == "completed"
    assert (await harness.history())[-1]["text"] == "w1 w2 w3 w4 w5 end"
    assert not any("released" in (m.text or "") for m in await harness.state())


async def test_an_async_tool_that_swallows_its_cancellation_is_given_up(harness, settings):
    settings.RUNS_CANCEL_GRACE = 0.2
    harness.script.add(call("hang_async"))
    run_id = await harness.start()
    await harness.marks.seen("hang_async started")

    ended = await harness.cancelled(run_id)

    assert ended.status == "cancelled"
    assert (await in_thread(ToolCall.objects.get)).effect == "unknown"
    await harness.assert_next_completes()


@pytest.mark.parametrize("build", [sequential_graph, plain_graph, fan_out_graph])
async def test_no_call_that_had_not_started_starts_any_more(engine, alice, serve, tmp_path, build, settings):
    settings.RUNS_CANCEL_GRACE = 3
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        asked = [("slow_async", {"seconds": 30})] + [
            ("mark", {"x": str(n), "seconds": 1.0}) for n in range(2, 6)
        ]
        harness.script.add(calls(*asked))
        run_id = await harness.start()
        await harness.marks.seen("slow_async started")
        await event(run_id, "tool.started")
        began = {
            row.name + str(row.args)
            for row in await in_thread(lambda: list(ToolCall.objects.exclude(started_at=None)))
        }

        ended = await harness.cancelled(run_id)

        assert ended.status == "cancelled"
        rows = await in_thread(lambda: list(ToolCall.objects.order_by("id")))
        assert len(rows) == 5
        assert harness.provider.calls[1:] == []
        marked = harness.marks.read()
        for row in rows:
            if row.effect == "none":
                assert row.args["x"] not in marked
        if build is sequential_graph:
            assert len(began) == 1
            assert [row.effect for row in rows] == ["unknown", "none", "none", "none", "none"]
        await harness.assert_sendable()
        await harness.assert_next_completes()


@pytest.mark.parametrize("cut", ["id", "name", "arguments"])
async def test_a_call_that_is_still_spelled_out_is_dropped(harness, cut):
    pieces = spelled("mark", {"x": "never to be seen"}, names=2, pieces=6)
    at = {"id": 1, "name": 2, "arguments": 5}[cut]
    harness.script.add(Round(words("Let me do that."), pieces[:at], Hold("cut"), pieces[at:]))
    run_id = await harness.start()
    await harness.script.gate("cut").reached()
    await until(lambda: "that." in _told(run_id))

    ended = await harness.cancelled(run_id)

    assert ended.status == "cancelled"
    answer = (await harness.history())[-1]
    assert (answer["text"], answer["tool_calls"]) == ("Let me do that.", [])
    assert harness.marks.read() == []
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_cancel_before_the_first_step_makes_no_llm_call(harness):
    for _ in range(20):
        run_id = await harness.start("hello")
        ended = await harness.cancelled(run_id)
        assert ended.status in ("cancelled", "completed")
        if ended.status == "cancelled" and not await in_thread(
            lambda run_id=run_id: RunEvent.objects.filter(run=run_id, type="message.delta").exists()
        ):
            break
    history = await harness.history()
    assert [m["text"] for m in history if m["role"] == "user"] == ["hello"] * (_ + 1)
    await harness.assert_next_completes()


async def test_cancel_of_a_queued_run_stays_in_the_history(harness):
    harness.script.add(Round(Hold("first"), text("one")))
    first = await harness.start("first")
    await harness.script.gate("first").reached()
    queued = await harness.start("second", multitask="enqueue")
    await harness.cancel(queued)
    harness.script.gate("first").open()
    await terminal(first)

    calls = len(harness.provider.calls)
    assert (await harness.run(queued)).status == "cancelled"
    assert calls == 1
    await harness.assert_next_completes("third")
    said = [m["content"] for m in harness.provider.calls[-1].messages if m["role"] == "user"]
    assert said == ["first", "second", "third"]


async def test_ten_concurrent_cancels_are_one_operation(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    async def one(n):
        if n % 2:
            accepted = await in_thread(operations.cancel_session, harness.owner, harness.session)
        else:
            accepted = await harness.cancel(run_id)
        return await operations.wait_for_cancellation(accepted, 10)

    answers = await asyncio.gather(*(one(n) for n in range(10)))

    assert len({answer["id"] for answer in answers}) == 1
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["outcome"] == "cancelled"
    assert await in_thread(Cancellation.objects.count) == 1
    assert [e.type for e in await log_of(run_id)].count("run.cancelled") == 1
    assert (await in_thread(Session.objects.get)).cancellation_revision == 2


async def test_pending_is_true_before_the_turn_has_ended(harness, settings):
    settings.RUNS_CANCEL_GRACE = 1
    harness.script.add(call("hang"))
    run_id = await harness.start()
    await harness.marks.seen("hang started")
    other = await in_thread(operations.create_session, harness.owner)

    await harness.cancel(run_id)
    pending = await in_thread(operations.session_snapshot, harness.owner, harness.session)

    assert (pending["cancellation_pending"], pending["status"]) == (True, "running")
    assert pending["active_run"]["cancellation"]["settled_at"] is None
    untouched = await in_thread(operations.session_snapshot, harness.owner, other["id"])
    assert (untouched["cancellation_pending"], untouched["cancellation_revision"]) == (False, 0)
    await terminal(run_id)
    settled = await in_thread(operations.session_snapshot, harness.owner, harness.session)
    assert (settled["cancellation_pending"], settled["cancellation_revision"]) == (False, 2)


async def test_a_waiting_run_ends_at_once_and_the_next_turn_works(harness):
    harness.script.add(call("ask", question="Really?"))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")
    assert waiting.questions[0]["value"]["question"] == "Really?"

    ended = await harness.cancelled(run_id)

    assert ended.status == "cancelled"
    assert harness.marks.read() == []
    await harness.assert_next_completes()


@pytest.mark.parametrize("ending", ["queued", "waiting", "forced"])
async def test_what_ended_without_its_execution_reads_the_same_once_the_next_turn_has_repaired_it(
    harness, olivia, ending
):
    if ending == "waiting":
        harness.script.add(call("ask", question="Really?"))
    else:
        harness.script.add(Round(Hold("first")))
    run_id = await harness.start()
    if ending == "queued":
        run_id = await harness.start("later", multitask="enqueue")
        assert (await harness.cancelled(run_id)).status == "cancelled"
        await in_thread(operations.cancel_session, harness.owner, harness.session)
        await until(lambda: not Session.objects.filter(runs__status="running").exists())
    elif ending == "waiting":
        await status(run_id, "waiting")
        await harness.cancelled(run_id)
    else:
        await harness.script.gate("first").reached()
        await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")
    before = await harness.history()
    assert before[-1]["text"] == "(Stopped before an answer was given.)"
    counted = (await in_thread(operations.session_snapshot, harness.owner, harness.session))["statistics"]
    results = sum(len(message["tool_calls"]) for message in before)
    assert counted["message_count"] == len(before) + results

    await harness.assert_next_completes()

    after = await harness.history()
    assert [_words(m) for m in after[: len(before)]] == [_words(m) for m in before]


def _words(message):
    return message["role"], message["text"], message["status"], message["run"]


async def test_an_answered_question_goes_on_in_the_same_run(harness):
    harness.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")

    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "Yes"})

    ended = await terminal(run_id)
    assert ended.status == "completed", ended.error_message
    assert harness.marks.read() == ["answered Yes"]
    types = [e.type for e in await log_of(run_id)]
    assert types.count("tool.started") == 1
    assert types.count("tool.completed") == 1
    assert types.index("run.waiting") < types.index("run.answered") < types.index("tool.completed")


async def test_the_first_message_after_a_stop_is_answered(harness, settings):
    settings.RUNS_CANCEL_GRACE = 0.2
    for n in range(10):
        harness.script.add(
            call("heeding_sync" if n % 2 else "hang_async", seconds=30) if n % 2 else call("hang_async")
        )
        run_id = await harness.start("first")
        await event(run_id, "tool.started")
        await harness.cancel(run_id)
        await asyncio.sleep(random.uniform(0, 0.3))
        harness.script.clear()
        harness.script.add(say("Here."))
        second = await harness.start("second", multitask="enqueue")
        ended = await terminal(second)
        assert ended.status == "completed", ended.error_message
        assert (await harness.history())[-1]["text"] == "Here."
        harness.script.clear()


async def test_a_cancelled_turn_is_on_the_books(harness):
    from tests.fakes import Usage

    harness.script.add(
        call("mark", x="1", usage=Usage(100, 20)),
        call("mark", x="2", usage=Usage(150, 30)),
        Round(numbered(40), Hold("third"), numbered(4)),
    )
    run_id = await harness.start()
    await harness.script.gate("third").reached()
    await until(lambda: "w40" in _told(run_id))

    ended = await harness.cancelled(run_id)

    assert ended.llm_calls == len(harness.provider.calls) == 3
    assert ended.tool_calls == 2
    assert ended.input_tokens > 250
    assert ended.output_tokens > 50
    assert ended.tokens_estimated is True
    assert (ended.open_input_tokens, ended.open_output_tokens) == (0, 0)
    messages = await harness.history()
    assert ended.message_count == len(messages) + sum(len(m["tool_calls"]) for m in messages)


async def test_cancel_against_the_natural_end_gives_one_ending(harness):
    endings = {"cancelled": 0, "completed": 0}
    for _ in range(40):
        await harness.open_session()
        harness.script.add(say("a b c d", delay=0.005))
        run_id = await harness.start()
        await asyncio.sleep(random.uniform(0.0, 0.08))
        answer = await operations.wait_for_cancellation(await harness.cancel(run_id), 10)
        ended = await terminal(run_id)
        log = [e.type for e in await log_of(run_id)]
        endings[ended.status] += 1
        assert sum(t in ("run.completed", "run.failed", "run.cancelled", "run.interrupted") for t in log) == 1
        assert log[-1] == f"run.{ended.status}"
        assert answer["outcome"] == ("cancelled" if ended.status == "cancelled" else "already_finished")
        if ended.started_at is not None:  # one that was still queued enters the history with the next turn
            await harness.assert_sendable()
        harness.script.clear()
    assert endings["cancelled"]


async def test_a_cancel_before_a_question_leaves_the_same_words_everywhere(harness, monkeypatch):
    """It is accepted when the graph has asked, and before that is written."""
    harness.script.add(call("ask", question="Go?"))
    wait = questions.wait

    def be_cancelled_first(run_id, *of):
        operations.cancel_run(harness.owner, run_id)
        return wait(run_id, *of)

    monkeypatch.setattr(questions, "wait", be_cancelled_first)
    run_id = await harness.start()
    ended = await terminal(run_id)

    assert (ended.status, ended.message_count) == ("cancelled", 4)
    told = [one.data["message"] for one in await log_of(run_id) if one.type == "message.completed"]
    shown = await harness.history()
    assert [message["id"] for message in shown if message["role"] == "assistant"] == told
    await harness.assert_next_completes()


async def test_a_cancel_of_a_turn_that_breaks_settles_at_once(harness, monkeypatch):
    async def be_cancelled_and_break(graph, turn):
        await harness.cancel(str(turn.run.id))
        raise RuntimeError("the graph's own reducer")

    with monkeypatch.context() as patched:
        patched.setattr(graph_input, "begin", be_cancelled_and_break)
        assert (await terminal(await harness.start())).status == "cancelled"
    assert (await in_thread(Cancellation.objects.get)).outcome == "cancelled"
    await harness.assert_next_completes()


async def test_a_tool_that_fails_because_of_the_stop_is_no_failure(harness):
    harness.script.add(Round(numbered(2), Hold("x"), numbered(1)))
    run_id = await harness.start()
    await harness.script.gate("x").reached()
    await harness.cancel(run_id)
    ended = await terminal(run_id)
    assert (ended.status, ended.error_code) == ("cancelled", None)


async def test_a_tools_own_cancelled_error_is_its_failure_and_no_cancel(harness):
    harness.script.add(call("cancelling"), say("Never mind."))
    run_id = await harness.start()

    ended = await terminal(run_id)

    assert ended.status in ("failed", "completed")
    assert ended.cancel_requested_at is None
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_the_operation_goes_on_without_its_requester(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    waiting = asyncio.create_task(_cancel_and_wait(harness, run_id))
    await until(Cancellation.objects.exists)
    waiting.cancel()

    assert (await terminal(run_id)).status == "cancelled"


async def _cancel_and_wait(harness, run_id):
    return await operations.wait_for_cancellation(await harness.cancel(run_id), None)


def _told(run_id):
    deltas = RunEvent.objects.filter(run=run_id, type="message.delta").order_by("seq")
    return "".join(data["text"] for data in deltas.values_list("data", flat=True))


async def test_after_a_force_cancel_nothing_of_the_run_is_written(harness, olivia, settings):
    """The execution is alive and in the middle of its work when an operator takes the run away."""
    settings.RUNS_STEP_LIMIT = 10_000  # it goes on for as long as nobody stops it
    for n in range(10):
        await harness.open_session()
        harness.script.respond = lambda messages, n=n: call("mark", x=str(n))
        run_id = await harness.start()
        await event(run_id, "tool.completed")
        await asyncio.sleep(random.uniform(0, 0.05))

        await in_thread(operations.force_cancel, olivia, run_id, "It has to end.")

        log, state = await _written(run_id, harness)
        execution = harness.engine.executions.get(UUID(run_id))
        if execution is not None:
            await execution.ended.wait()
        assert await _written(run_id, harness) == (log, state)
        assert log[-1] == "run.cancelled"
        harness.script.respond = None
        await harness.assert_next_completes()
        await harness.assert_sendable()


async def _written(run_id, harness):
    saver = harness.engine.checkpoints.reader()
    config = {"configurable": {"thread_id": harness.session}}
    tuples = [
        (found.config["configurable"]["checkpoint_id"], len(found.pending_writes or []))
        async for found in saver.alist(config)
    ]
    return [entry.type for entry in await log_of(run_id)], tuples
