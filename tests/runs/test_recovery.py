"""What a crash leaves behind, and what the next server makes of it.

``EVERY_CUT=1`` crashes behind every checkpoint write of a turn instead of every second one.
"""

import asyncio
import os
import sqlite3
import threading
from uuid import uuid4

import psycopg
import pytest
from django.db import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout

from runs import agents, lifecycle, operations, recovery, turns
from runs.checkpoints import FencedSaver
from runs.database import in_thread
from runs.errors import NotInterrupted
from runs.models import Cancellation, Run, RunEvent, Session, ToolCall, Worker
from runs.node import process_checkpoints
from runs.worker import Supervisor
from runs.writer import RunLog
from tests.fakes import SHAPES, Failure, Hold, Round, call, calls, numbered, say, text
from tests.runs.servers import lose_process, servers_of_a_test
from tests.runs.stage import open_stage
from tests.runs.waiting import event, log_of, status, terminal, until


@pytest.fixture
def release():
    """Ends every hanging tool when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
async def servers(transactional_db):
    async with servers_of_a_test() as started:
        yield started


@pytest.fixture
async def stage(servers, alice, serve, tmp_path, release):
    async with open_stage(alice, serve, tmp_path / "marks", release=release) as opened:
        yield opened


def opening(alice, serve, tmp_path, release, **policy):
    """A stage whose agent has a policy."""
    return open_stage(alice, serve, tmp_path / "marks", release=release, policy=policy)


async def cut_in_answer(stage, answer="w1 w2 w3 w4 w5", name="cut"):
    """A turn whose answer has come this far and no further; its run."""
    count = len(answer.split())
    stage.script.add(Round(numbered(count), Hold(name), numbered(3)))
    run_id = await stage.start()
    await until(lambda: told(run_id) == answer, what="the partial answer")
    return run_id


def told(run_id):
    deltas = RunEvent.objects.filter(run=run_id, type="message.delta").order_by("seq")
    return "".join(data["text"] for data in deltas.values_list("data", flat=True))


async def interrupted(run_id):
    found = await terminal(run_id)
    assert found.status == "interrupted", found.status
    return found


async def snapshot(stage):
    return await in_thread(operations.session_snapshot, stage.owner, stage.session)


async def resumed(stage, run_id):
    """Resume the run; the new one, once it has ended."""
    return await terminal((await in_thread(operations.resume, stage.owner, run_id))["id"])


async def gone_on_with(run_id):
    """The run that resumes this one without anybody asking, once it is admitted."""
    return await until(Run.objects.filter(resumes=run_id).first, what="an automatic resume")


# After a crash


async def test_line_36_the_next_server_ends_what_the_dead_one_executed(stage, servers):
    words = " ".join(f"w{n}" for n in range(1, 31))
    run_id = await cut_in_answer(stage, words)

    await servers.restart()

    ended = await interrupted(run_id)
    log = await log_of(run_id)
    assert [e.seq for e in log] == list(range(1, len(log) + 1))
    assert (log[-1].type, log[-1].data["reason"]) == ("run.interrupted", "worker_lost")
    shown = await snapshot(stage)
    assert (shown["status"], shown["active_run"], shown["cancellation_pending"]) == (
        "interrupted",
        None,
        False,
    )
    assert ended.llm_calls == 1
    assert ended.tokens_estimated is True
    assert 15 <= ended.output_tokens <= 60
    assert [m["text"] for m in await stage.history()] == ["go", words]
    assert await in_thread(Worker.objects.count) == 1


async def test_line_37_resume_goes_on_from_the_checkpoint(stage, servers):
    stage.script.add(call("mark", x="once"))
    run_id = await cut_in_answer(stage)
    await servers.restart()
    await interrupted(run_id)
    stage.script.clear()
    stage.script.add(say("The whole answer."))

    ended = await resumed(stage, run_id)

    assert ended.status == "completed", ended.error_message
    assert stage.marks.read() == ["once"]
    history = await stage.history()
    assert [m["text"] for m in history if m["role"] == "user"] == ["go"]
    assert "w1" not in str(history)
    assert history[-1]["text"] == "The whole answer."
    assert [c["result"] for c in history[1]["tool_calls"]] == ["marked once"]
    assert "w1" not in str(stage.provider.calls[-1].messages)
    assert await in_thread(told, run_id) == "w1 w2 w3 w4 w5"
    await stage.assert_sendable()
    await stage.assert_next_completes()


async def test_line_37_dismiss_closes_the_turn_and_keeps_what_was_said(stage, servers):
    run_id = await cut_in_answer(stage)
    await servers.restart()
    await interrupted(run_id)

    dismissed = await in_thread(operations.dismiss, stage.owner, run_id)

    assert dismissed["resolution"] == "dismissed"
    assert (await snapshot(stage))["status"] == "idle"
    with pytest.raises(NotInterrupted):
        await in_thread(operations.resume, stage.owner, run_id)
    await stage.assert_next_completes()
    said = [(m["role"], m["content"]) for m in stage.provider.calls[-1].messages]
    assert said == [("user", "go"), ("assistant", "w1 w2 w3 w4 w5"), ("user", "and now?")]
    await stage.assert_sendable()


@pytest.mark.parametrize("words", [None, "other words"], ids=["as it was", "edited"])
@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "interrupted"])
async def test_line_37_retry_goes_back_to_before_the_users_message(stage, servers, ending, words):
    stage.script.add(say("Long ago."))
    await terminal(await stage.start("first"))
    stage.script.add(call("mark", x="1"))
    if ending == "completed":
        stage.script.add(say("Old answer."))
        run_id = await stage.start()
    elif ending == "failed":
        stage.script.add(Round(Failure(500, "no")))
        run_id = await stage.start()
    else:
        run_id = await cut_in_answer(stage)
        await (stage.cancelled(run_id) if ending == "cancelled" else servers.restart())
    assert (await terminal(run_id)).status == ending
    log = await log_of(run_id)
    stage.script.clear()
    stage.script.add(say("New answer."))

    retried = await in_thread(operations.retry, stage.owner, run_id, words)

    assert retried["retries"] == str(run_id)
    ended = await terminal(retried["id"])
    assert ended.status == "completed", ended.error_message
    asked = words or "go"
    said = [m["content"] for m in stage.provider.calls[-1].messages]
    assert said == ["first", "Long ago.", asked]
    assert [m["text"] for m in await stage.history()] == ["first", "Long ago.", asked, "New answer."]
    assert [e.id for e in await log_of(run_id)] == [e.id for e in log]
    assert (await stage.run(run_id)).resolution == "retried"
    await stage.assert_sendable()
    await stage.assert_next_completes()


async def test_c07_a_cancel_accepted_before_the_crash_wins_and_nothing_stays_pending(
    stage, servers, settings
):
    settings.RUNS_CANCEL_GRACE = 60
    stage.script.add(call("hang"))
    run_id = await stage.start()
    await event(run_id, "tool.started")
    accepted = await stage.cancel(run_id)
    assert (await snapshot(stage))["cancellation_pending"] is True

    await servers.restart()

    assert (await terminal(run_id)).status == "cancelled"
    settled = await in_thread(lambda: Cancellation.objects.get(id=accepted["id"]))
    assert settled.outcome == "reconciled"
    shown = await snapshot(stage)
    assert (shown["cancellation_pending"], shown["cancellation_revision"]) == (False, 2)
    assert (await stage.cancel(run_id))["id"] == accepted["id"]
    await stage.assert_next_completes()
    await stage.assert_sendable()


async def test_c07_stop_of_a_turn_that_died_is_a_success(stage, servers):
    run_id = await cut_in_answer(stage)
    await servers.crash()  # and nobody has swept yet

    answer = await stage.cancel(run_id)

    assert answer["outcome"] == "reconciled"
    assert (await stage.run(run_id)).status == "cancelled"
    await servers.start()
    await stage.assert_next_completes()


async def test_line_36_a_turn_that_died_before_its_first_step_keeps_its_message(stage, servers):
    await servers.crash()
    run_id = await stage.start("hello")  # admitted, and nobody is there

    await servers.start()

    assert (await terminal(run_id)).status == "completed"
    assert [m["text"] for m in await stage.history()] == ["hello", "All right."]


async def test_line_36_a_claimed_turn_without_a_checkpoint_can_be_resumed(stage, servers):
    supervisor = await in_thread(Worker.objects.get)
    await servers.crash()
    run_id = await stage.start("hello")
    await in_thread(lambda: lifecycle.claim(Session.objects.get().id, supervisor.id))
    await servers.start()
    await interrupted(run_id)
    assert [m["text"] for m in await stage.history()] == ["hello"]

    ended = await resumed(stage, run_id)

    assert ended.status == "completed", ended.error_message
    assert [m["text"] for m in await stage.history()] == ["hello", "All right."]
    await stage.assert_sendable()


async def test_a_question_outlives_the_server_that_asked_it(stage, servers):
    stage.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await stage.start()
    waiting = await status(run_id, "waiting")

    await servers.restart()
    await Supervisor.current.beat()

    assert (await stage.run(run_id)).status == "waiting"
    await in_thread(operations.answer, stage.owner, run_id, {waiting.questions[0]["id"]: "Yes"})
    assert (await terminal(run_id)).status == "completed"
    assert stage.marks.read() == ["answered Yes"]


async def test_an_answer_that_nobody_took_is_taken_by_the_next_server(stage, servers):
    stage.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await stage.start()
    waiting = await status(run_id, "waiting")
    await servers.crash()
    await in_thread(operations.answer, stage.owner, run_id, {waiting.questions[0]["id"]: "Yes"})

    await servers.start()

    assert (await terminal(run_id)).status == "completed"
    assert stage.marks.read() == ["answered Yes"]


async def test_an_answered_run_that_crashed_is_not_asked_again_when_it_is_resumed(stage, servers):
    stage.script.add(call("ask", question="Really?"))
    run_id = await stage.start()
    waiting = await status(run_id, "waiting")
    stage.script.add(Round(numbered(3), Hold("after"), numbered(2)))
    await in_thread(operations.answer, stage.owner, run_id, {waiting.questions[0]["id"]: "Yes"})
    await until(lambda: told(run_id) == "w1 w2 w3")
    await servers.restart()
    await interrupted(run_id)
    stage.script.clear()
    stage.script.add(say("Then so be it."))

    ended = await resumed(stage, run_id)

    assert ended.status == "completed", ended.error_message
    assert stage.marks.read() == ["answered Yes"]
    await stage.assert_sendable()


async def test_the_queue_waits_for_a_decision_and_keeps_its_order(stage, servers):
    run_id = await cut_in_answer(stage)
    queued = [await stage.start(f"queued {n}", multitask="enqueue") for n in range(3)]
    await servers.restart()
    await interrupted(run_id)
    await Supervisor.current.beat()
    assert [(await stage.run(one)).status for one in queued] == ["queued"] * 3
    stage.script.clear()

    resumption = await resumed(stage, run_id)

    ends = [await terminal(one) for one in queued]
    assert [one.status for one in [resumption, *ends]] == ["completed"] * 4
    positions = [one.position for one in [resumption, *ends]]
    assert positions == sorted(positions)
    said = [m["text"] for m in await stage.history() if m["role"] == "user"]
    assert said == ["go", "queued 0", "queued 1", "queued 2"]


async def test_c08_a_key_gives_its_run_after_a_restart_too(stage, servers):
    stage.script.add(call("mark", x="once"), say("Done."))
    run_id = await stage.start("go", key="k")
    await terminal(run_id)

    await servers.restart()

    assert await stage.start("go", key="k") == run_id
    assert stage.marks.read() == ["once"]
    assert [m["text"] for m in await stage.history() if m["role"] == "user"] == ["go"]


# Cuts


class Cut:
    """Stops an execution right behind the n-th of its checkpoint writes; with 0, before the first."""

    def __init__(self, monkeypatch, number):
        self.reached = asyncio.Event()
        self._left = number
        write = FencedSaver._write

        async def counted(saver, operation):
            written = await write(saver, operation) if number else None
            self._left -= 1
            if self._left > 0 or self.reached.is_set():
                return written
            self.reached.set()
            return await asyncio.Event().wait()

        monkeypatch.setattr(FencedSaver, "_write", counted)

    async def comes(self, run_id):
        """Whether the execution is cut before it ends."""
        ended = asyncio.create_task(terminal(run_id, 20))
        reached = asyncio.create_task(self.reached.wait())
        await asyncio.wait({ended, reached}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        reached.cancel()
        return self.reached.is_set()


@pytest.mark.parametrize("shape", ["fan_out", "plain"])
async def test_line_33_a_crash_between_any_two_steps_loses_and_repeats_nothing(
    servers, alice, serve, tmp_path, monkeypatch, shape
):
    async with open_stage(
        alice, serve, tmp_path / "marks", build=SHAPES[shape], strict_user_after_tool=True
    ) as stage:
        number = 0
        while await survives_cut(stage, servers, monkeypatch, number):
            number += 1 if "EVERY_CUT" in os.environ else 2
        assert number > 6


async def survives_cut(stage, servers, monkeypatch, number):
    """A turn of three tool calls, a crash at this cut, and its resumption; False if it has fewer cuts."""
    marks = [f"{number}.{n}" for n in range(3)]

    def respond(messages):
        results = sum(message["role"] == "tool" for message in messages)
        if results == 0:
            return call("mark", x=marks[0])
        if results == 1:
            return calls(("mark", {"x": marks[1]}), ("mark", {"x": marks[2]}))
        return say("Done.")

    await stage.open_session()
    stage.script.respond = respond
    llm_calls = len(stage.provider.calls)
    with monkeypatch.context() as patched:
        cut = Cut(patched, number)
        run_id = await stage.start("go")
        if not await cut.comes(run_id):
            return False
        for execution in Supervisor.current.executions.values():
            await execution._log.flush()
        await servers.crash()
    await servers.start()
    await interrupted(run_id)
    saved = await results(stage)

    resumption = await resumed(stage, run_id)

    assert resumption.status == "completed", (number, resumption.error_message)
    for mark in marks:
        assert 1 <= stage.marks.count(mark) <= (1 if mark in saved else 2), (number, saved)
    history = await stage.history()
    assert [m["text"] for m in history if m["role"] == "user"] == ["go"]
    assert history[-1]["text"] == "Done."
    assert [c["result"] for m in history for c in m["tool_calls"]] == [f"marked {x}" for x in marks]
    counted = sum(
        run.llm_calls for run in await in_thread(lambda: list(Run.objects.filter(session=stage.session)))
    )
    # The last one may have begun in the moment of the crash, too late for the books.
    assert counted <= len(stage.provider.calls) - llm_calls <= counted + 1
    await stage.assert_sendable()
    stage.script.respond = None
    await stage.assert_next_completes()
    return True


async def results(stage):
    """What the tools of the session marked, as far as the checkpoint holds it."""
    graph = agents.load("assistant").graph_on(Supervisor.current.checkpoints.reader())
    found = await graph.aget_state({"configurable": {"thread_id": stage.session}})
    return [m.text.removeprefix("marked ") for m in found.values.get("messages", ()) if m.type == "tool"]


async def test_line_32_a_dismissed_turn_reads_the_same_once_the_next_turn_has_repaired_it(stage, servers):
    stage.script.add(call("slow_async", seconds=60))
    run_id = await stage.start()
    await event(run_id, "tool.started")
    await servers.restart()
    await interrupted(run_id)

    await in_thread(operations.dismiss, stage.owner, run_id)

    before = await stage.history()
    assert before[-1]["text"] == "(The turn was interrupted before an answer was given.)"
    await stage.assert_next_completes()
    after = await stage.history()
    assert [(m["id"], m["role"], m["text"], m["status"], m["run"]) for m in after[: len(before)]] == [
        (m["id"], m["role"], m["text"], m["status"], m["run"]) for m in before
    ]


async def test_a_database_that_is_away_when_a_turn_begins_is_waited_for(stage, servers, monkeypatch):
    stage.script.add(say("There it is."))
    load, away = turns.load, [OperationalError("the server closed the connection"), InterfaceError("closed")]

    def load_in_the_end(run_id):
        if away:
            raise away.pop()
        return load(run_id)

    monkeypatch.setattr(turns, "load", load_in_the_end)

    assert (await terminal(await stage.start())).status == "completed"
    assert not away


async def test_a_database_that_is_away_while_the_history_is_brought_into_order_is_waited_for(
    stage, servers, monkeypatch
):
    """The checkpoints raise what the driver of their database raises."""
    await cut_in_answer(stage)
    await servers.restart()
    repair = turns.repair
    away = [PoolTimeout("none"), psycopg.OperationalError("ended"), sqlite3.OperationalError("locked")]

    async def repair_in_the_end(*args, **options):
        if away:
            raise away.pop()
        return await repair(*args, **options)

    monkeypatch.setattr(turns, "repair", repair_in_the_end)

    await stage.assert_next_completes()
    assert not away


@pytest.mark.parametrize("last", [None, "tool.started"])
@pytest.mark.parametrize("decision", ["resume", "dismiss"])
async def test_a_checkpoint_newer_than_the_log(stage, servers, monkeypatch, last, decision):
    """The log is written after the fact: the last moments before a crash may be in the checkpoint alone."""
    stage.script.add(call("mark", x="1"), Round(Hold("second"), text("Never said.")))
    emit, count = RunLog.emit, RunLog.count
    logged = []

    def is_lost():
        return last is None or last in logged

    def emit_until(log, type, data):
        if not is_lost():
            logged.append(type)
            emit(log, type, data)

    def count_until(log, **deltas):
        if not is_lost() or deltas == {"tool_calls": 1}:  # counted right behind its event
            count(log, **deltas)

    monkeypatch.setattr(RunLog, "emit", emit_until)
    monkeypatch.setattr(RunLog, "count", count_until if last else lambda log, **deltas: None)
    run_id = await stage.start()
    await stage.script.gate("second").reached()
    for execution in Supervisor.current.executions.values():
        await execution._log.flush()
    await servers.crash()
    monkeypatch.undo()
    assert [e.type for e in await log_of(run_id)][-1] == (last or "run.started")
    await servers.start()
    await interrupted(run_id)
    stage.script.clear()

    if decision == "resume":
        ended = await resumed(stage, run_id)
        assert ended.status == "completed", ended.error_message
        assert "tool.completed" in [e.type for e in await log_of(ended.id)]
    else:
        await in_thread(operations.dismiss, stage.owner, run_id)
        await stage.assert_next_completes()

    assert stage.marks.read() == ["1"]
    history = await stage.history()
    assert [m["text"] for m in history][:2] == ["go", ""]
    [told] = history[1]["tool_calls"]
    assert (told["status"], told["result"], told["effect"]) == ("completed", "marked 1", "done")
    if decision == "resume":
        assert [m["text"] for m in history] == ["go", "", "All right."]
        assert (await snapshot(stage))["statistics"]["tool_calls"] == 1
        await stage.assert_sendable()
        await stage.assert_next_completes()


@pytest.mark.parametrize("decision", ["resume", "retry", "dismiss"])
async def test_a_checkpoint_older_than_the_log(stage, servers, decision):
    """The checkpoints were lost: the turns that were not in order yet come back from the log."""
    stage.script.add(call("mark", x="1"))
    run_id = await cut_in_answer(stage)
    await servers.crash()
    async with process_checkpoints() as checkpoints:
        await checkpoints.delete([stage.session])
    await servers.start()
    await interrupted(run_id)
    stage.script.clear()

    if decision == "dismiss":
        await in_thread(operations.dismiss, stage.owner, run_id)
    else:
        admitted = await in_thread(getattr(operations, decision), stage.owner, run_id)
        assert (await terminal(admitted["id"])).status == "completed"

    await stage.assert_next_completes()
    said = [m["content"] for m in stage.provider.calls[-1].messages if m["role"] == "user"]
    assert said == ["go", "and now?"]
    if decision == "dismiss":
        assert "w1 w2 w3 w4 w5" in str(stage.provider.calls[-1].messages)
        assert "marked 1" in str(stage.provider.calls[-1].messages)
    await stage.assert_sendable()


@pytest.mark.parametrize("decision", ["resume", "retry", "dismiss", "message"])
async def test_line_37_a_cancel_in_the_queue_takes_no_decision_away(stage, servers, decision):
    """What was queued behind the lost run and cancelled there ended later, but has not taken its place."""
    run_id = await cut_in_answer(stage)
    queued = await stage.start("never mind", multitask="enqueue")
    await servers.crash()
    await servers.start()
    await interrupted(run_id)
    stage.script.clear()

    assert (await stage.cancel(queued))["outcome"] == "cancelled"

    assert (await snapshot(stage))["status"] == "interrupted"
    with pytest.raises(NotInterrupted):
        await in_thread(operations.retry, stage.owner, queued)
    if decision == "dismiss":
        await in_thread(operations.dismiss, stage.owner, run_id)
    elif decision == "message":
        await stage.assert_next_completes("something else")
    else:
        following = await in_thread(getattr(operations, decision), stage.owner, run_id)
        assert (await terminal(following["id"])).status == "completed"
    assert (await snapshot(stage))["status"] == "idle"
    await stage.assert_next_completes()
    await stage.assert_sendable()
    history = [m["text"] for m in await stage.history() if m["role"] == "user"]
    begun = {"retry": ["never mind", "go"], "message": ["go", "never mind", "something else"]}
    assert history == [*begun.get(decision, ["go", "never mind"]), "and now?"]
    asked = [m["content"] for m in stage.provider.calls[-1].messages if m["role"] == "user"]
    assert asked == history


# Policies


async def test_line_39_an_answer_that_was_cut_goes_on_by_itself(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as stage:
        stage.script.add(call("mark", x="once"))
        run_id = await cut_in_answer(stage)
        stage.script.clear()
        stage.script.add(say("The whole answer."))

        await servers.restart()

        following = await terminal((await gone_on_with(run_id)).id)
        assert following.status == "completed", following.error_message
        assert (following.automatic_resumes, following.requested_by_id) == (1, alice.pk)
        assert (await stage.run(run_id)).resolution == "resumed"
        assert stage.marks.read() == ["once"]
        assert (await stage.history())[-1]["text"] == "The whole answer."


async def test_line_39_at_most_so_many_times_in_a_row(servers, alice, serve, tmp_path, release, settings):
    settings.RUNS_MAX_RESUMES = 2
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as stage:
        run_id = await cut_in_answer(stage, name="cut 0")
        for n in (1, 2):
            stage.script.add(Round(numbered(5), Hold(f"cut {n}")))
            await servers.restart()
            run_id = (await gone_on_with(run_id)).id
            await until(lambda run_id=run_id: told(run_id) == "w1 w2 w3 w4 w5")

        await servers.restart()

        left = await interrupted(run_id)
        assert (left.automatic_resumes, left.resolution) == (2, None)
        await Supervisor.current.beat()
        assert (await snapshot(stage))["status"] == "interrupted"
        assert await in_thread(Run.objects.count) == 3
        by_hand = await resumed(stage, run_id)
        assert (by_hand.status, by_hand.automatic_resumes) == ("completed", 0)


@pytest.mark.parametrize("idempotent", [False, True], ids=["unknown effect", "idempotent"])
async def test_line_39_a_tool_that_may_have_worked_runs_again_only_if_it_may(
    servers, alice, serve, tmp_path, release, idempotent
):
    harmless = frozenset({"slow_async"}) if idempotent else frozenset()
    policy = {"on_interrupt": "resume", "idempotent_tools": harmless}
    async with opening(alice, serve, tmp_path, release, **policy) as stage:
        stage.script.add(call("slow_async", seconds=1))
        run_id = await stage.start()
        await event(run_id, "tool.started")
        assert (await in_thread(ToolCall.objects.get)).effect is None

        await servers.restart()

        await interrupted(run_id)
        await Supervisor.current.beat()
        started = stage.marks.count("slow_async started")
        if idempotent:
            assert (await terminal((await gone_on_with(run_id)).id)).status == "completed"
            assert stage.marks.count("slow_async started") == 2
        else:
            assert (started, await in_thread(Run.objects.count)) == (1, 1)
            assert (await snapshot(stage))["status"] == "interrupted"


async def test_line_39_a_tool_whose_start_was_not_logged_any_more_may_have_worked(
    servers, alice, serve, tmp_path, release, monkeypatch
):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as stage:
        stage.script.add(call("slow_async", seconds=60))

        async def step(writer):
            await asyncio.Event().wait()

        monkeypatch.setattr("runs.writer.EventWriter.step", step)
        run_id = await stage.start()
        await stage.marks.seen("slow_async started")
        await servers.crash()
        monkeypatch.undo()
        assert await in_thread(ToolCall.objects.count) == 0

        await servers.start()
        await interrupted(run_id)
        await Supervisor.current.beat()

        assert await in_thread(Run.objects.count) == 1
        assert stage.marks.count("slow_async started") == 1


async def test_line_41_what_was_drained_between_two_steps_goes_on_on_the_next_server(
    servers, alice, serve, tmp_path, release
):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as stage:
        stage.script.add(Round(numbered(3), Hold("cut"), call("mark", x="1").steps))
        run_id = await stage.start()
        await stage.script.gate("cut").reached()
        leaving = asyncio.create_task(servers.leave(5))
        await until(lambda: Supervisor.current.leaving)
        stage.script.gate("cut").open()
        await leaving
        ended = await interrupted(run_id)
        assert (await in_thread(ToolCall.objects.get)).effect == "none"
        assert stage.marks.read() == []
        assert [e.data["reason"] for e in await log_of(ended.id) if e.type == "run.interrupted"] == [
            "shutdown"
        ]

        await servers.start()

        following = await terminal((await gone_on_with(run_id)).id)
        assert following.status == "completed", following.error_message
        assert stage.marks.read() == ["1"]
        assert [m["text"] for m in await stage.history()] == ["go", "w1 w2 w3", "All right."]


async def test_an_agent_may_dismiss_what_was_interrupted(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="dismiss") as stage:
        run_id = await cut_in_answer(stage)
        queued = await stage.start("next", multitask="enqueue")
        stage.script.clear()

        await servers.restart()

        assert (await terminal(queued)).status == "completed"
        assert (await stage.run(run_id)).resolution == "dismissed"
        assert (await snapshot(stage))["status"] == "idle"
        await stage.assert_sendable()


async def test_a_turn_of_an_agent_that_is_gone_is_left_as_it_is(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as stage:
        run_id = await cut_in_answer(stage)
        await servers.crash()
        serve(other=lambda: None)

        await servers.start()
        await Supervisor.current.beat()

        assert (await interrupted(run_id)).resolution is None


async def test_line_38_two_who_recover_at_once_resume_once(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release) as stage:
        run_id = await cut_in_answer(stage)
        await servers.restart()
        await interrupted(run_id)
        stage.script.clear()
        policy = agents.Policy(on_interrupt="resume")
        stage.script.add(Round(Hold("again")))
        agents._function("assistant").policy = policy

        swept = await asyncio.gather(
            *(recovery.recover(Supervisor.current.checkpoints, Supervisor.current.id) for _ in range(4))
        )

        assert sum(one.runs_resumed for one in swept) == 1
        assert await in_thread(Run.objects.filter(resumes=run_id).count) == 1


async def test_line_38_two_who_sweep_at_once_reclaim_once(stage, servers):
    run_id = await cut_in_answer(stage)
    await servers.crash()

    swept = await asyncio.gather(*(in_thread(recovery.sweep, uuid4()) for _ in range(4)))

    assert sum(one.runs_interrupted for one in swept) == 1
    assert sum(one.workers_lost for one in swept) == 1
    assert [e.type for e in await log_of(run_id)].count("run.interrupted") == 1
    await servers.start()


# Leaving


async def test_line_41_a_turn_in_its_last_step_may_still_complete(stage, servers):
    stage.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await stage.start()
    await stage.script.gate("last").reached()

    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: Supervisor.current.leaving)
    with pytest.raises(operations.Unavailable):
        await stage.start("too late", multitask="enqueue")
    stage.script.gate("last").open()
    await leaving

    assert (await terminal(run_id)).status == "completed"


@pytest.mark.sqlite("PostgreSQL fences by the run's row")
async def test_line_43_a_force_cancel_while_the_process_leaves_closes_the_checkpoints_first(
    stage, servers, olivia, monkeypatch
):
    stage.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await stage.start()
    await stage.script.gate("last").reached()
    [execution] = Supervisor.current.executions.values()
    closed = []
    end = lifecycle._end

    def ending(*args, **how):
        closed.append(execution._saver._gate.closed)
        end(*args, **how)

    monkeypatch.setattr(lifecycle, "_end", ending)
    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: Supervisor.current.leaving)

    await in_thread(operations.force_cancel, olivia, run_id, "It has to be now.")

    assert closed == [True]
    assert (await terminal(run_id)).status == "cancelled"
    await leaving


@pytest.mark.parametrize("where", ["answer", "slow_async", "heeding_sync", "hang", "hang_async"])
async def test_line_41_a_turn_that_does_not_end_in_time_is_interrupted(stage, servers, settings, where):
    settings.RUNS_CANCEL_GRACE = 0.5
    if where == "answer":
        run_id = await cut_in_answer(stage)
    else:
        arguments = {} if "hang" in where else {"seconds": 60}
        stage.script.add(call(where, **arguments))
        run_id = await stage.start()
        await event(run_id, "tool.started")
    queued = await stage.start("queued", multitask="enqueue")
    loop = asyncio.get_running_loop()
    began = loop.time()

    await servers.leave(3)

    assert loop.time() - began < 5
    ended = await interrupted(run_id)
    last = (await log_of(ended.id))[-1]
    assert (last.type, last.data["reason"]) == ("run.interrupted", "shutdown")
    assert (await stage.run(queued)).status == "queued"
    assert await in_thread(Worker.objects.count) == 0
    if where != "answer":
        row = await in_thread(ToolCall.objects.get)
        assert (row.status, row.effect) == ("interrupted", "unknown")
    stage.script.clear()
    await servers.start()
    await in_thread(operations.dismiss, stage.owner, run_id)
    assert (await terminal(queued)).status == "completed"
    await stage.assert_sendable()


async def test_line_41_a_waiting_run_stays_when_the_server_leaves(stage, servers):
    stage.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await stage.start()
    waiting = await status(run_id, "waiting")

    await servers.leave()
    await servers.start()

    await in_thread(operations.answer, stage.owner, run_id, {waiting.questions[0]["id"]: "No"})
    assert (await terminal(run_id)).status == "completed"
    assert stage.marks.read() == ["answered No"]


# Zombies


async def everything(stage, run_id):
    """All that is stored of a run and of its session's checkpoints, but for what a straggler may add."""

    def rows():
        run = Run.objects.values().get(id=run_id)
        return (
            run,
            list(RunEvent.objects.filter(run=run_id).order_by("seq").values()),
            ToolCall.objects.count(),
        )

    async with process_checkpoints() as checkpoints:
        config = {"configurable": {"thread_id": stage.session}}
        stored = [
            (found.config["configurable"]["checkpoint_id"], len(found.pending_writes or ()))
            async for found in checkpoints.reader().alist(config)
        ]
    return await in_thread(rows), stored


@pytest.mark.parametrize("tool", ["hang", "hang_async"])
@pytest.mark.parametrize("how", ["reclaimed", "force-cancelled", "given up"])
async def test_line_40_what_lost_its_run_changes_nothing_when_it_wakes_up(
    stage, servers, settings, olivia, release, how, tool
):
    settings.RUNS_CANCEL_GRACE = 0.2
    stage.script.add(call(tool), say("From the grave."))
    run_id = await stage.start()
    await stage.marks.seen(f"{tool} started")
    await event(run_id, "tool.started")
    supervisor = Supervisor.current
    execution = next(iter(supervisor.executions.values()))
    if how == "reclaimed":
        await in_thread(lose_process, supervisor)
        assert (await in_thread(recovery.sweep, uuid4())).runs_interrupted == 1
        await supervisor.beat()  # as it does when it wakes up
        assert await in_thread(Worker.objects.filter(id=supervisor.id).exists)
    elif how == "force-cancelled":
        await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")
    else:
        await stage.cancel(run_id)
    await terminal(run_id)
    await execution.ended.wait()
    before = await everything(stage, run_id)
    calls = len(stage.provider.calls)

    release.set()
    await stage.marks.seen(f"{tool} ended")
    await until(lambda: not supervisor.stragglers, what="the straggler's end")

    assert await everything(stage, run_id) == before
    assert len(stage.provider.calls) == calls
    stage.script.clear()
    if how == "reclaimed":
        await in_thread(operations.dismiss, stage.owner, run_id)
    await stage.assert_next_completes()
    await stage.assert_sendable()


async def test_line_40_a_turn_is_not_disturbed_by_one_before_it_that_was_not_told_of_its_end(
    stage, servers, settings, olivia, release, monkeypatch
):
    """The notice is lost, and the earlier execution's tool comes to its result while the next turn runs."""
    settings.RUNS_HEARTBEAT = 60
    settings.RUNS_CANCEL_GRACE = 0.2
    monkeypatch.setattr("runs.notices.stop_execution", lambda run, *, fenced: None)
    stage.script.add(call("slow_sync", seconds=60))
    run_id = await stage.start("first")
    await event(run_id, "tool.started")
    await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")
    stage.script.add(Round(numbered(2), Hold("second"), text(" end")))
    second = await stage.start("second")
    await stage.script.gate("second").reached()
    before = await everything(stage, run_id)

    release.set()
    await stage.marks.seen("slow_sync ended")
    earlier = Supervisor.current.executions.get((await stage.run(run_id)).id)
    if earlier is not None:
        await earlier.ended.wait()

    assert (await everything(stage, run_id))[1] == before[1]
    stage.script.gate("second").open()
    assert (await terminal(second)).status == "completed"
    assert len(stage.provider.calls) == 2
    await stage.assert_sendable()
    assert [m["text"] for m in await stage.history() if m["role"] == "user"] == ["first", "second"]


async def test_line_38_a_worker_that_was_taken_for_dead_signs_on_again(stage, servers):
    supervisor = Supervisor.current
    await in_thread(Worker.objects.filter(id=supervisor.id).delete)
    run_id = await stage.start()  # which it cannot claim: it is dead

    await supervisor.beat()

    assert (await terminal(run_id)).status == "completed"


async def test_line_38_a_living_worker_and_a_waiting_run_are_never_reclaimed(stage, servers):
    stage.script.add(call("ask", question="Really?"))
    asked = await stage.start()
    await status(asked, "waiting")
    await stage.open_session()
    streaming = await cut_in_answer(stage)

    swept = await in_thread(recovery.sweep, uuid4())

    assert (swept.workers_lost, swept.runs_interrupted) == (0, 0)
    assert (await stage.run(streaming)).status == "running"
    await in_thread(Worker.objects.all().delete)
    await in_thread(recovery.sweep, uuid4())
    assert (await stage.run(asked)).status == "waiting"
    assert (await stage.run(streaming)).status == "interrupted"


async def test_line_27_a_cancel_that_was_recorded_elsewhere_is_found_by_the_heartbeat(
    stage, servers, monkeypatch
):
    run_id = await cut_in_answer(stage)
    monkeypatch.setattr("runs.notices.stop_execution", lambda run, *, fenced: None)
    await stage.cancel(run_id)
    assert (await snapshot(stage))["cancellation_pending"] is True

    await Supervisor.current.beat()

    assert (await terminal(run_id)).status == "cancelled"
