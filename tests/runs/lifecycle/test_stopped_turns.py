"""What was said in a stopped turn stays, and the next turn goes on from there."""

import asyncio

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.lifecycle import questions
from runs.models import RunEvent, Session
from runs.worker import graph_input
from tests.fakes import (
    SHAPES,
    Hold,
    Round,
    call,
    numbered,
    say,
    spelled,
    text,
    words,
)
from tests.runs.harness import open_harness
from tests.runs.waiting import event, log_of, status, terminal, until


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
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


def _told(run_id):
    deltas = RunEvent.objects.filter(run=run_id, type="message.delta").order_by("seq")
    return "".join(data["text"] for data in deltas.values_list("data", flat=True))


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


@pytest.mark.parametrize("tool", ["heeding_sync", "hang_async"])
@pytest.mark.parametrize("moment", ["is stopping", "is being repaired", "has ended"])
async def test_the_first_message_after_a_stop_is_answered(harness, settings, monkeypatch, tool, moment):
    settings.RUNS_CANCEL_GRACE = 0.2
    repair, repairing, go_on = graph_input.repair_own, asyncio.Event(), asyncio.Event()

    async def repair_slowly(*args):
        repairing.set()
        await go_on.wait()
        await repair(*args)

    if moment == "is being repaired":
        monkeypatch.setattr(graph_input, "repair_own", repair_slowly)
    harness.script.add(call(tool, seconds=30) if tool == "heeding_sync" else call(tool))
    run_id = await harness.start("first")
    await event(run_id, "tool.started")
    await harness.cancel(run_id)
    if moment == "is being repaired":
        await repairing.wait()
    elif moment == "has ended":
        await terminal(run_id)
    harness.script.clear()
    harness.script.add(say("Here."))

    second = await harness.start("second", multitask="enqueue")
    go_on.set()

    ended = await terminal(second)
    assert ended.status == "completed", ended.error_message
    assert (await harness.history())[-1]["text"] == "Here."
