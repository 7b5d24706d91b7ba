"""What lost its run and does not know it; workers that were taken for dead."""

import asyncio
import threading
from uuid import uuid4

import pytest
from django.db import OperationalError

from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.lifecycle import endings, questions, queue
from runs.memory.checkpoints import process_checkpoints
from runs.models import Run, RunEvent, ToolCall, Worker
from runs.recovery import sweep
from tests.fakes import Hold, Round, call, numbered, say, text
from tests.runs.recovery.steps import cut_in_answer, snapshot
from tests.runs.servers import lose_process, servers_of_a_test
from tests.runs.waiting import PATIENCE, event, status, terminal, until


async def everything(harness, run_id):
    """All that is stored of a run and of its session's checkpoints, but for what a straggler may add."""

    def rows():
        run = Run.objects.values().get(id=run_id)
        del run["stragglers"]
        return (
            run,
            list(RunEvent.objects.filter(run=run_id).order_by("seq").values()),
            ToolCall.objects.count(),
        )

    async with process_checkpoints() as checkpoints:
        config = {"configurable": {"thread_id": harness.session}}
        stored = [
            (found.config["configurable"]["checkpoint_id"], len(found.pending_writes or ()))
            async for found in checkpoints.reader().alist(config)
        ]
    return await in_thread(rows), stored


@pytest.mark.parametrize("tool", ["hang", "hang_async"])
@pytest.mark.parametrize("how", ["reclaimed", "force-cancelled", "given up"])
async def test_what_lost_its_run_changes_nothing_when_it_wakes_up(
    harness, servers, settings, olivia, release, how, tool
):
    settings.RUNS_CANCEL_GRACE = 0.2
    harness.script.add(call(tool), say("From the grave."))
    run_id = await harness.start()
    await harness.marks.seen(f"{tool} started")
    await event(run_id, "tool.started")
    supervisor = this_process.engine
    execution = next(iter(supervisor.executions.values()))
    if how == "reclaimed":
        await in_thread(lose_process, supervisor)
        assert (await in_thread(sweep.sweep, uuid4())).runs_interrupted == 1
        await supervisor.beat()  # as it does when it wakes up
        assert await in_thread(Worker.objects.filter(id=supervisor.id).exists)
    elif how == "force-cancelled":
        await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")
    else:
        await harness.cancel(run_id)
    await terminal(run_id)
    await execution.ended.wait()
    before = await everything(harness, run_id)
    calls = len(harness.provider.calls)

    release.set()
    await harness.marks.seen(f"{tool} ended")
    await until(lambda: not supervisor.stragglers, what="the straggler's end")

    assert await everything(harness, run_id) == before
    assert len(harness.provider.calls) == calls
    harness.script.clear()
    if how == "reclaimed":
        await in_thread(operations.dismiss, harness.owner, run_id)
    await harness.assert_next_completes()
    await harness.assert_sendable()


async def test_a_force_cancel_that_fails_leaves_the_execution_as_it_was(
    harness, servers, olivia, monkeypatch
):
    def fail(*args, **how):
        raise OperationalError("the disk is full")

    harness.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await harness.start()
    await harness.script.gate("last").reached()
    with monkeypatch.context() as patched:
        patched.setattr(endings, "end", fail)
        with pytest.raises(OperationalError):
            await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")

    harness.script.gate("last").open()

    assert (await terminal(run_id)).status == "completed"


async def test_a_turn_is_not_disturbed_by_one_before_it_that_was_not_told_of_its_end(
    harness, servers, settings, olivia, release, monkeypatch
):
    """The notice is lost, and the earlier execution's tool comes to its result while the next turn runs."""
    settings.RUNS_HEARTBEAT = 60
    settings.RUNS_CANCEL_GRACE = 0.2
    monkeypatch.setattr("runs.live.notices.stop_execution", lambda run, *, fenced: None)
    harness.script.add(call("slow_sync", seconds=60))
    run_id = await harness.start("first")
    await event(run_id, "tool.started")
    await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")
    harness.script.add(Round(numbered(2), Hold("second"), text(" end")))
    second = await harness.start("second")
    await harness.script.gate("second").reached()
    before = await everything(harness, run_id)

    release.set()
    await harness.marks.seen("slow_sync ended")
    earlier = this_process.engine.executions.get((await harness.run(run_id)).id)
    if earlier is not None:
        await earlier.ended.wait()

    assert (await everything(harness, run_id))[1] == before[1]
    harness.script.gate("second").open()
    assert (await terminal(second)).status == "completed"
    assert len(harness.provider.calls) == 2
    await harness.assert_sendable()
    assert [m["text"] for m in await harness.history() if m["role"] == "user"] == ["first", "second"]


async def test_a_worker_that_was_taken_for_dead_signs_on_again(harness, servers):
    supervisor = this_process.engine
    await in_thread(Worker.objects.filter(id=supervisor.id).delete)
    run_id = await harness.start()  # which it cannot claim: it is dead

    await supervisor.beat()
    await supervisor.sweep()

    assert (await terminal(run_id)).status == "completed"


async def test_a_worker_beats_while_its_sweep_waits(transactional_db, settings, monkeypatch):
    """For a row that somebody holds, or because there is much to do: nobody must take it for dead."""
    sweeping, may_end = asyncio.Event(), asyncio.Event()

    async def recover(*_, **__):
        sweeping.set()
        await may_end.wait()

    settings.RUNS_HEARTBEAT = 0.05
    async with servers_of_a_test():
        monkeypatch.setattr(sweep, "recover", recover)
        async with asyncio.timeout(10 * PATIENCE):
            await sweeping.wait()
        found = Worker.objects.filter(id=this_process.engine.id)
        before = (await in_thread(found.get)).heartbeat_at
        await until(found.filter(heartbeat_at__gt=before).exists, what="a heartbeat")
        may_end.set()


async def test_a_living_worker_and_a_waiting_run_are_never_reclaimed(harness, servers):
    harness.script.add(call("ask", question="Really?"))
    asked = await harness.start()
    await status(asked, "waiting")
    await harness.open_session()
    streaming = await cut_in_answer(harness)

    swept = await in_thread(sweep.sweep, uuid4())

    assert (swept.workers_lost, swept.runs_interrupted) == (0, 0)
    assert (await harness.run(streaming)).status == "running"
    await in_thread(Worker.objects.all().delete)
    await in_thread(sweep.sweep, uuid4())
    assert (await harness.run(asked)).status == "waiting"
    assert (await harness.run(streaming)).status == "interrupted"


async def test_a_cancel_that_was_recorded_elsewhere_is_found_by_the_heartbeat(harness, servers, monkeypatch):
    run_id = await cut_in_answer(harness)
    monkeypatch.setattr("runs.live.notices.stop_execution", lambda run, *, fenced: None)
    await harness.cancel(run_id)
    assert (await snapshot(harness))["cancellation_pending"] is True

    await this_process.engine.beat()

    assert (await terminal(run_id)).status == "cancelled"


async def test_a_claim_whose_answer_was_lost_ends_at_the_second_sweep(harness, servers, monkeypatch):
    claim, lost = queue.claim, []

    def claim_and_lose_the_answer(*of):
        lost.append(claim(*of))
        raise OperationalError("the server closed the connection")

    with monkeypatch.context() as patched:
        patched.setattr(queue, "claim", claim_and_lose_the_answer)
        run_id = await harness.start()
        await until(lambda: lost and not this_process.engine._claims, what="a claim without an answer")
    harness.script.add(say("Here it is."))
    await this_process.engine.sweep()
    assert (await harness.run(run_id)).status == "running"

    await this_process.engine.sweep()

    assert (await harness.run(run_id)).status == "interrupted"
    resumed_run = await in_thread(operations.resume, harness.owner, run_id)
    assert (await terminal(resumed_run["id"])).status == "completed"


async def test_what_is_executed_or_being_claimed_is_no_stray(harness, servers, monkeypatch):
    claim, committed, may_return = queue.claim, threading.Event(), threading.Event()

    def claim_slowly(*of):
        found = claim(*of)
        committed.set()
        may_return.wait(60)
        return found

    harness.script.add(Round(numbered(2), Hold("middle"), numbered(2)))
    with monkeypatch.context() as patched:
        patched.setattr(queue, "claim", claim_slowly)
        run_id = await harness.start()
        await until(committed.is_set)
        for _ in range(3):
            await this_process.engine.sweep()
        may_return.set()
        await event(run_id, "message.delta")
    for _ in range(3):
        await this_process.engine.sweep()
    harness.script.gate("middle").open()

    assert (await terminal(run_id)).status == "completed"


async def test_an_execution_that_asks_and_learns_it_late_does_not_hide_the_one_that_goes_on(
    harness, servers, monkeypatch
):
    """The reply to its question's commit is lost, and the user answers before it has asked again."""
    harness.script.add(call("ask", question="Go?"))
    wait, lost = questions.wait, []

    def wait_and_lose_the_reply(*of):
        waits = wait(*of)
        if not lost:
            lost.append(of)
            raise OperationalError("the server closed the connection")
        return waits

    monkeypatch.setattr(questions, "wait", wait_and_lose_the_reply)
    run_id = await harness.start()
    asked = await status(run_id, "waiting")
    first = this_process.engine.executions[asked.id]
    harness.script.add(Round(numbered(2), Hold("middle"), numbered(2)))

    await in_thread(operations.answer, harness.owner, run_id, {one["id"]: "Yes" for one in asked.questions})

    await event(run_id, "message.delta")
    await first.ended.wait()
    await asyncio.sleep(0)
    assert this_process.engine.executions.get(asked.id) not in (None, first)
    for _ in range(2):
        await this_process.engine.sweep()
    harness.script.gate("middle").open()
    assert (await terminal(run_id)).status == "completed"
