"""A server that is told to leave."""

import asyncio

import pytest
from django.db import connection
from langchain_core.tools import tool

from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.lifecycle import dispatch
from runs.models import Run, ToolCall, Worker
from runs.recovery import safety
from runs.worker.ending import StopReason
from tests.fakes import Hold, Round, ScriptedModel, call, fan_out_graph, numbered, say, text
from tests.runs.recovery.steps import cut_in_answer, interrupted
from tests.runs.waiting import event, log_of, status, terminal, until


async def test_a_turn_in_its_last_step_may_still_complete(harness, servers):
    harness.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await harness.start()
    await harness.script.gate("last").reached()

    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: this_process.engine.leaving)
    with pytest.raises(operations.Unavailable):
        await harness.start("too late", multitask="enqueue")
    harness.script.gate("last").open()
    await leaving

    assert (await terminal(run_id)).status == "completed"


@pytest.mark.sqlite("PostgreSQL fences by the run's row")
async def test_a_force_cancel_while_the_process_leaves_closes_the_checkpoints_first(
    harness, servers, olivia, monkeypatch
):
    harness.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await harness.start()
    await harness.script.gate("last").reached()
    [execution] = this_process.engine.executions.values()
    closed = []
    fence = dispatch.fence

    def fencing(run_id):
        fence(run_id)
        assert connection.in_atomic_block
        closed.append(execution._saver._fence.closed)

    monkeypatch.setattr(dispatch, "fence", fencing)
    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: this_process.engine.leaving)

    await in_thread(operations.force_cancel, olivia, run_id, "It has to be now.")

    assert closed == [True]
    assert (await terminal(run_id)).status == "cancelled"
    await leaving


@pytest.mark.parametrize("where", ["answer", "slow_async", "heeding_sync", "hang", "hang_async"])
async def test_a_turn_that_does_not_end_in_time_is_interrupted(harness, servers, settings, where):
    settings.RUNS_CANCEL_GRACE = 0.5
    if where == "answer":
        run_id = await cut_in_answer(harness)
    else:
        arguments = {} if "hang" in where else {"seconds": 60}
        harness.script.add(call(where, **arguments))
        run_id = await harness.start()
        await event(run_id, "tool.started")
    queued = await harness.start("queued", multitask="enqueue")
    loop = asyncio.get_running_loop()
    began = loop.time()

    await servers.leave(3)

    assert loop.time() - began < 5
    ended = await interrupted(run_id)
    last = (await log_of(ended.id))[-1]
    assert (last.type, last.data["reason"]) == ("run.interrupted", "shutdown")
    assert (await harness.run(queued)).status == "queued"
    assert await in_thread(Worker.objects.count) == 0
    if where != "answer":
        row = await in_thread(ToolCall.objects.get)
        assert (row.status, row.effect) == ("interrupted", "unknown")
    harness.script.clear()
    await servers.start()
    await in_thread(operations.dismiss, harness.owner, run_id)
    assert (await terminal(queued)).status == "completed"
    await harness.assert_sendable()


async def test_a_waiting_run_stays_when_the_server_leaves(harness, servers):
    harness.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")

    await servers.leave()
    await servers.start()

    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "No"})
    assert (await terminal(run_id)).status == "completed"
    assert harness.marks.read() == ["answered No"]


async def test_a_tool_that_begins_while_the_server_leaves_is_known_to_have_begun(harness, servers, serve):
    """What says so to the log waits behind what the model said, and the graph is being stopped."""

    @tool
    async def pay() -> str:
        """Pay."""
        harness.marks.write("paid")
        for execution in this_process.engine.executions.values():
            execution.stop(StopReason.SHUTDOWN)
        await asyncio.sleep(60)
        return "paid"

    serve(lambda: fan_out_graph(ScriptedModel(call("pay"), say("Done.")), [pay]))
    ended = await interrupted(await harness.start())

    assert harness.marks.read() == ["paid"]
    assert (await in_thread(ToolCall.objects.get)).effect == "unknown"
    run = await in_thread(Run.objects.select_related("session").get, id=ended.id)
    assert not await safety.is_safe(run, this_process.engine.checkpoints)
