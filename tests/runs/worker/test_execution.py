"""Executions on real graphs, in this process."""

import asyncio
import threading

import pytest

from runs import operations, operators
from runs.foundation.database import in_thread
from runs.lifecycle import questions, queue
from runs.models import Cancellation, Run
from tests.fakes import Marks, Round, ScriptedModel, Silence, call, fan_out_graph, say, tools
from tests.runs.harness import open_harness
from tests.runs.waiting import PATIENCE, at_rest, log_of, terminal, until


async def test_a_turn_runs_to_its_end_and_says_so_in_the_log(engine, serve, alice):
    serve(lambda: fan_out_graph(ScriptedModel(say("Hello there, world."))))
    session = await in_thread(operations.create_session, alice)

    run = await in_thread(operations.start_turn, alice, session["id"], "hi")

    ended = await terminal(run["id"])
    assert ended.status == "completed", ended.error_message
    log = await log_of(run["id"])
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert log[0].type == "run.queued"
    assert log[1].type == "run.started"
    assert "".join(e.data["text"] for e in log if e.type == "message.delta") == "Hello there, world."
    assert log[-1].type == "run.completed"
    assert ended.message_count == 2


async def test_tools_run_and_their_results_are_kept(engine, serve, alice, tmp_path):
    marks = Marks(tmp_path / "marks")
    serve(lambda: fan_out_graph(ScriptedModel(call("mark", x="one"), say("Done.")), tools(marks)))
    session = await in_thread(operations.create_session, alice)

    run = await in_thread(operations.start_turn, alice, session["id"], "mark one")

    ended = await terminal(run["id"])
    assert ended.status == "completed", ended.error_message
    assert marks.read() == ["one"]
    assert (ended.llm_calls, ended.tool_calls, ended.message_count) == (2, 1, 4)


@pytest.mark.parametrize("force", [False, True], ids=["cancel", "force-cancel"])
async def test_a_cancel_between_the_claim_and_the_execution_stops_it(
    engine, serve, alice, olivia, monkeypatch, force
):
    """The claim is committed, its execution does not exist yet. No heartbeat helps."""
    model = ScriptedModel(Round(Silence()))
    serve(lambda: fan_out_graph(model))
    claim = queue.claim

    def claim_and_be_cancelled(session_id, worker_id):
        run = claim(session_id, worker_id)
        if run is None:
            return None
        if force:
            operators.force_cancel(olivia, run.id, "now")
        else:
            operations.cancel_run(alice, run.id)
        return run

    monkeypatch.setattr(queue, "claim", claim_and_be_cancelled)
    monkeypatch.setattr(engine, "_marks", list)
    session = await in_thread(operations.create_session, alice)
    run = await in_thread(operations.start_turn, alice, session["id"], "hi")

    assert (await terminal(run["id"])).status == "cancelled"
    async with asyncio.timeout(10 * PATIENCE):
        await at_rest(engine)
    assert (await in_thread(Cancellation.objects.get)).outcome == ("reconciled" if force else "cancelled")
    assert model.script.left == 1
    assert engine._early_stops == {}


def answer(alice, run, asked):
    """All questions, with yes."""
    operations.answer(alice, run, {question["id"]: "Yes" for question in asked})


async def test_a_cancel_of_the_next_claim_is_not_lost_to_the_execution_before(
    engine, serve, alice, tmp_path, monkeypatch
):
    """The answer is claimed and cancelled while the execution that asked still ends. No heartbeat helps."""
    wait, claim, cancelled = questions.wait, queue.claim, threading.Event()

    def wait_and_be_answered(run_id, number, asked, reason):
        outcome = wait(run_id, number, asked, reason)
        answer(alice, run_id, asked)
        assert cancelled.wait(10 * PATIENCE)
        return outcome

    def claim_and_be_cancelled(session_id, worker_id):
        run = claim(session_id, worker_id)
        if run is not None and run.claim == 2:
            operations.cancel_run(alice, run.id)
            cancelled.set()
        return run

    monkeypatch.setattr(questions, "wait", wait_and_be_answered)
    monkeypatch.setattr(queue, "claim", claim_and_be_cancelled)
    monkeypatch.setattr(engine, "_marks", list)
    rounds = [call("ask", question="Really?"), Round(Silence())]
    async with open_harness(alice, serve, tmp_path / "marks", rounds=rounds) as harness:
        assert (await terminal(await harness.start())).status == "cancelled"


async def test_a_heartbeat_does_not_stop_the_next_claim_for_the_state_of_the_one_before(
    engine, serve, alice, tmp_path, monkeypatch
):
    """The heartbeat reads that the run waits. Before it acts on that, the answer is claimed."""
    wait, claim = questions.wait, queue.claim
    loop, looked, claimed = asyncio.get_running_loop(), threading.Event(), threading.Event()
    marks = engine._marks

    def look_and_be_overtaken():
        monkeypatch.setattr(engine, "_marks", marks)
        found = marks()
        looked.set()
        assert claimed.wait(10 * PATIENCE)
        # The claim is registered by the loop, behind which the reply of this function waits.
        asyncio.run_coroutine_threadsafe(until_claimed_again(), loop).result(10 * PATIENCE)
        return found

    async def until_claimed_again():
        await until(lambda: any(one.run.claim == 2 for one in engine.executions.values()))

    def wait_and_be_looked_at(run_id, number, asked, reason):
        outcome = wait(run_id, number, asked, reason)
        monkeypatch.setattr(engine, "_marks", look_and_be_overtaken)
        asyncio.run_coroutine_threadsafe(engine.beat(), loop)
        assert looked.wait(10 * PATIENCE)
        answer(alice, run_id, asked)
        return outcome

    def claim_and_say_so(session_id, worker_id):
        run = claim(session_id, worker_id)
        if run is not None and run.claim == 2:
            claimed.set()
        return run

    monkeypatch.setattr(questions, "wait", wait_and_be_looked_at)
    monkeypatch.setattr(queue, "claim", claim_and_say_so)
    rounds = [call("ask", question="Really?"), Round(Silence())]
    async with open_harness(alice, serve, tmp_path / "marks", rounds=rounds) as harness:
        run_id = await harness.start()
        await until(Run.objects.filter(id=run_id, llm_calls=2).exists, what="the call behind the answer")
        assert (await harness.cancelled(run_id)).status == "cancelled"


async def test_an_execution_that_is_fenced_before_it_begins_writes_no_checkpoint(
    engine, serve, alice, olivia, tmp_path, monkeypatch
):
    """An earlier turn is still to be repaired, which would be the first write."""
    claim, storage, writes, forced = queue.claim, engine.checkpoints._storage, [], threading.Event()
    write = storage.write

    async def note(operation, claim=None):
        if forced.is_set():
            writes.append(operation)
        return await write(operation, claim)

    def claim_and_be_forced(session_id, worker_id):
        run = claim(session_id, worker_id)
        if run is not None:
            operators.force_cancel(olivia, run.id, "now")
            forced.set()
        return run

    monkeypatch.setattr(storage, "write", note)
    async with open_harness(alice, serve, tmp_path / "marks", rounds=[Round(Silence())]) as harness:
        first = await harness.start()
        await until(Run.objects.filter(id=first, llm_calls=1).exists, what="the first call")
        await in_thread(operators.force_cancel, olivia, first, "now")
        await at_rest(engine)
        assert not (await harness.run(first)).repaired
        monkeypatch.setattr(queue, "claim", claim_and_be_forced)
        assert (await terminal(await harness.start("again"))).status == "cancelled"
        await at_rest(engine)
    assert writes == []
