"""What a crash leaves behind, and what the next server makes of it."""

import pytest

from runs import operations, this_process
from runs.errors import NotInterrupted
from runs.foundation.database import in_thread
from runs.lifecycle import endings, queue
from runs.models import Cancellation, Session, Worker
from runs.worker import graph_input
from tests.fakes import Failure, Hold, Round, call, numbered, say
from tests.runs.recovery.steps import cut_in_answer, goes_on, interrupted, resumed, snapshot, told
from tests.runs.waiting import event, log_of, status, terminal, until


async def test_a_run_that_cannot_be_ended_keeps_no_other_from_its_end(harness, servers, monkeypatch):
    ids = []
    for n in range(3):
        await harness.open_session()
        harness.script.add(Round(numbered(3), Hold(f"{n}")))
        ids.append(await harness.start(f"turn {n}"))
        await event(ids[-1], "message.delta")
    interrupt = endings.interrupt

    def interrupt_all_but_one(run_id, **of):
        if str(run_id) == ids[1]:
            raise ValueError("this data is no good")
        return interrupt(run_id, **of)

    with monkeypatch.context() as patched:
        patched.setattr(endings, "interrupt", interrupt_all_but_one)
        await servers.restart()
        for sound in (ids[0], ids[2]):
            await interrupted(sound)
        assert (await harness.run(ids[1])).status == "running"
    await this_process.engine.sweep()
    await interrupted(ids[1])


async def test_the_next_server_ends_what_the_dead_one_executed(harness, servers):
    words = " ".join(f"w{n}" for n in range(1, 31))
    run_id = await cut_in_answer(harness, words)

    await servers.restart()

    ended = await interrupted(run_id)
    log = await log_of(run_id)
    assert [e.seq for e in log] == list(range(1, len(log) + 1))
    assert (log[-1].type, log[-1].data["reason"]) == ("run.interrupted", "worker_lost")
    shown = await snapshot(harness)
    assert (shown["status"], shown["active_run"], shown["cancellation_pending"]) == (
        "interrupted",
        None,
        False,
    )
    assert ended.llm_calls == 1
    assert ended.tokens_estimated is True
    assert 15 <= ended.output_tokens <= 60
    assert [m["text"] for m in await harness.history()] == ["go", words]
    assert await in_thread(Worker.objects.count) == 1


async def test_resume_goes_on_from_the_checkpoint(harness, servers):
    harness.script.add(call("mark", x="once"))
    run_id = await cut_in_answer(harness)
    await servers.restart()
    await interrupted(run_id)

    await goes_on(harness, run_id, "The whole answer.")

    assert harness.marks.read() == ["once"]
    history = await harness.history()
    assert [m["text"] for m in history if m["role"] == "user"] == ["go"]
    assert "w1" not in str(history)
    assert history[-1]["text"] == "The whole answer."
    assert [c["result"] for c in history[1]["tool_calls"]] == ["marked once"]
    assert "w1" not in str(harness.provider.calls[-1].messages)
    assert await in_thread(told, run_id) == "w1 w2 w3 w4 w5"
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_dismiss_closes_the_turn_and_keeps_what_was_said(harness, servers):
    run_id = await cut_in_answer(harness)
    await servers.restart()
    await interrupted(run_id)

    dismissed = await in_thread(operations.dismiss, harness.owner, run_id)

    assert dismissed["resolution"] == "dismissed"
    assert (await snapshot(harness))["status"] == "idle"
    with pytest.raises(NotInterrupted):
        await in_thread(operations.resume, harness.owner, run_id)
    await harness.assert_next_completes()
    said = [(m["role"], m["content"]) for m in harness.provider.calls[-1].messages]
    assert said == [("user", "go"), ("assistant", "w1 w2 w3 w4 w5"), ("user", "and now?")]
    await harness.assert_sendable()


@pytest.mark.parametrize("words", [None, "other words"], ids=["as it was", "edited"])
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "interrupted"])
async def test_retry_goes_back_to_before_the_users_message(harness, servers, ending, words):
    harness.script.add(say("Long ago."))
    await terminal(await harness.start("first"))
    harness.script.add(call("mark", x="1"))
    if ending == "completed":
        harness.script.add(say("Old answer."))
        run_id = await harness.start()
    elif ending == "failed":
        harness.script.add(Round(Failure(500, "no")))
        run_id = await harness.start()
    else:
        run_id = await cut_in_answer(harness)
        await (harness.cancelled(run_id) if ending == "cancelled" else servers.restart())
    assert (await terminal(run_id)).status == ending
    log = await log_of(run_id)
    harness.script.clear()
    harness.script.add(say("New answer."))

    retried = await in_thread(operations.retry, harness.owner, run_id, words)

    assert retried["retries"] == str(run_id)
    ended = await terminal(retried["id"])
    assert ended.status == "completed", ended.error_message
    asked = words or "go"
    said = [m["content"] for m in harness.provider.calls[-1].messages]
    assert said == ["first", "Long ago.", asked]
    assert [m["text"] for m in await harness.history()] == ["first", "Long ago.", asked, "New answer."]
    assert [e.id for e in await log_of(run_id)] == [e.id for e in log]
    assert (await harness.run(run_id)).resolution == "retried"
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_a_cancel_accepted_before_the_crash_wins_and_nothing_stays_pending(harness, servers, settings):
    settings.RUNS_CANCEL_GRACE = 60
    harness.script.add(call("hang"))
    run_id = await harness.start()
    await event(run_id, "tool.started")
    accepted = await harness.cancel(run_id)
    assert (await snapshot(harness))["cancellation_pending"] is True

    await servers.restart()

    assert (await terminal(run_id)).status == "cancelled"
    settled = await in_thread(lambda: Cancellation.objects.get(id=accepted["id"]))
    assert settled.outcome == "reconciled"
    shown = await snapshot(harness)
    assert (shown["cancellation_pending"], shown["cancellation_revision"]) == (False, 2)
    assert (await harness.cancel(run_id))["id"] == accepted["id"]
    await harness.assert_next_completes()
    await harness.assert_sendable()


async def test_stop_of_a_turn_that_died_is_a_success(harness, servers):
    run_id = await cut_in_answer(harness)
    await servers.crash()  # and nobody has swept yet

    answer = await harness.cancel(run_id)

    assert answer["outcome"] == "reconciled"
    assert (await harness.run(run_id)).status == "cancelled"
    await servers.start()
    await harness.assert_next_completes()


async def test_a_turn_that_died_before_its_first_step_keeps_its_message(harness, servers):
    await servers.crash()
    run_id = await harness.start("hello")  # admitted, and nobody is there

    await servers.start()

    assert (await terminal(run_id)).status == "completed"
    assert [m["text"] for m in await harness.history()] == ["hello", "All right."]


async def test_a_claimed_turn_without_a_checkpoint_can_be_resumed(harness, servers):
    run_id = await died_before_its_first_step(servers, lambda: harness.start("hello"))
    assert [m["text"] for m in await harness.history()] == ["hello"]

    ended = await resumed(harness, run_id)

    assert ended.status == "completed", ended.error_message
    assert [m["text"] for m in await harness.history()] == ["hello", "All right."]
    await harness.assert_sendable()


async def died_before_its_first_step(servers, admit):
    """A run that its worker claimed and did nothing about; interrupted."""
    lost_id = this_process.engine.id  # by its id: the row of an earlier one may still be there
    await servers.crash()
    run_id = await admit()
    await in_thread(lambda: queue.claim(Session.objects.get().id, lost_id))
    await servers.start()
    await interrupted(run_id)
    return run_id


async def cut_behind_another(harness, servers):
    """A turn that was interrupted in its answer, behind one that went well."""
    harness.script.add(say("Long ago."), call("mark", x="1"))
    await terminal(await harness.start("first"))
    run_id = await cut_in_answer(harness)
    await servers.restart()
    await interrupted(run_id)
    return run_id


async def test_a_turn_that_died_before_it_repaired_the_history_does_so_when_resumed(harness, servers):
    cut = await cut_behind_another(harness, servers)
    await in_thread(operations.dismiss, harness.owner, cut)

    died = await died_before_its_first_step(servers, lambda: harness.start("third"))
    await goes_on(harness, died)

    await assert_shown_is_sent(harness, ["first", "go", "third"])


async def test_a_retry_that_died_before_it_went_back_does_so_when_resumed(harness, servers):
    cut = await cut_behind_another(harness, servers)

    async def retry():
        return (await in_thread(operations.retry, harness.owner, cut, "better"))["id"]

    died = await died_before_its_first_step(servers, retry)
    await goes_on(harness, died)

    await assert_shown_is_sent(harness, ["first", "better"])


async def test_a_turn_cancelled_in_the_queue_stays_behind_the_one_that_is_resumed(harness, servers):
    cut = await cut_in_answer(harness)
    queued = await harness.start("second", multitask="enqueue")
    await servers.restart()
    await interrupted(cut)
    await harness.cancelled(queued)

    await goes_on(harness, cut)

    await assert_shown_is_sent(harness, ["go", "second"])


async def assert_shown_is_sent(harness, users):
    """The history has these messages of the user, and the model got it and gets it with the next turn."""
    await harness.assert_sendable()
    for _ in range(2):
        shown = [(m["role"], m["text"]) for m in await harness.history()]
        assert [text for role, text in shown if role == "user"] == users
        await harness.assert_next_completes()
        sent = [m for m in harness.provider.calls[-1].messages if m["role"] != "tool"]
        assert [(m["role"], m["content"] or "") for m in sent[:-1]] == shown
        users = [*users, sent[-1]["content"]]


async def test_a_question_outlives_the_server_that_asked_it(harness, servers):
    harness.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")

    await servers.restart()
    await this_process.engine.sweep()

    assert (await harness.run(run_id)).status == "waiting"
    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "Yes"})
    assert (await terminal(run_id)).status == "completed"
    assert harness.marks.read() == ["answered Yes"]


async def test_an_answer_that_nobody_took_is_taken_by_the_next_server(harness, servers):
    harness.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")
    await servers.crash()
    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "Yes"})

    await servers.start()

    assert (await terminal(run_id)).status == "completed"
    assert harness.marks.read() == ["answered Yes"]


async def test_an_answered_run_that_crashed_is_not_asked_again_when_it_is_resumed(harness, servers):
    harness.script.add(call("ask", question="Really?"))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")
    harness.script.add(Round(numbered(3), Hold("after"), numbered(2)))
    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "Yes"})
    await until(lambda: told(run_id) == "w1 w2 w3")
    await servers.restart()
    await interrupted(run_id)

    await goes_on(harness, run_id, "Then so be it.")

    assert harness.marks.read() == ["answered Yes"]
    await harness.assert_sendable()


async def test_the_queue_waits_for_a_decision_and_keeps_its_order(harness, servers):
    run_id = await cut_in_answer(harness)
    queued = [await harness.start(f"queued {n}", multitask="enqueue") for n in range(3)]
    await servers.restart()
    await interrupted(run_id)
    await this_process.engine.sweep()
    assert [(await harness.run(one)).status for one in queued] == ["queued"] * 3
    harness.script.clear()

    resumption = await resumed(harness, run_id)

    ends = [await terminal(one) for one in queued]
    assert [one.status for one in [resumption, *ends]] == ["completed"] * 4
    positions = [one.position for one in [resumption, *ends]]
    assert positions == sorted(positions)
    said = [m["text"] for m in await harness.history() if m["role"] == "user"]
    assert said == ["go", "queued 0", "queued 1", "queued 2"]


async def test_a_key_gives_its_run_after_a_restart_too(harness, servers):
    harness.script.add(call("mark", x="once"), say("Done."))
    run_id = await harness.start("go", key="k")
    await terminal(run_id)

    await servers.restart()

    assert await harness.start("go", key="k") == run_id
    assert harness.marks.read() == ["once"]
    assert [m["text"] for m in await harness.history() if m["role"] == "user"] == ["go"]


async def test_what_a_lost_turn_had_begun_is_not_called_undone_by_its_resumption(
    harness, servers, monkeypatch
):
    harness.script.add(call("slow_async", seconds=60))
    run_id = await harness.start()
    await event(run_id, "tool.started")
    await servers.restart()
    await interrupted(run_id)
    begin = graph_input.begin

    async def begin_and_be_cancelled(graph, saver, turn):
        begun = await begin(graph, saver, turn)
        await harness.cancel(str(turn.run.id))
        await until(this_process.engine.executions[turn.run.id]._stop.done)
        return begun

    monkeypatch.setattr(graph_input, "begin", begin_and_be_cancelled)
    resumption = await resumed(harness, run_id)
    monkeypatch.undo()

    assert resumption.status == "cancelled"
    [told] = [one.data["effect"] for one in await log_of(resumption.id) if one.type == "tool.cancelled"]
    [shown] = [one["effect"] for message in await harness.history() for one in message["tool_calls"]]
    assert (told, shown) == ("unknown", "unknown")
    assert "It may have taken effect" in str(await harness.state())
    await harness.assert_next_completes()
