"""A server that is told to leave."""

import asyncio

import pytest
from langchain_core.tools import tool

from runs import operations, process
from runs.foundation.database import in_thread
from runs.lifecycle import endings
from runs.models import Run, ToolCall, Worker
from runs.recovery import safety
from runs.worker.ending import StopReason
from tests.fakes import Hold, Round, ScriptedModel, call, fan_out_graph, numbered, say, text
from tests.runs.recovery.steps import cut_in_answer, interrupted
from tests.runs.waiting import event, log_of, status, terminal, until


async def test_a_turn_in_its_last_step_may_still_complete(stage, servers):
    stage.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await stage.start()
    await stage.script.gate("last").reached()

    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: process.current.leaving)
    with pytest.raises(operations.Unavailable):
        await stage.start("too late", multitask="enqueue")
    stage.script.gate("last").open()
    await leaving

    assert (await terminal(run_id)).status == "completed"


@pytest.mark.sqlite("PostgreSQL fences by the run's row")
async def test_a_force_cancel_while_the_process_leaves_closes_the_checkpoints_first(
    stage, servers, olivia, monkeypatch
):
    stage.script.add(Round(numbered(3), Hold("last"), text(" w4")))
    run_id = await stage.start()
    await stage.script.gate("last").reached()
    [execution] = process.current.executions.values()
    closed = []
    end = endings.end

    def ending(*args, **how):
        closed.append(execution._saver._fence.closed)
        end(*args, **how)

    monkeypatch.setattr(endings, "end", ending)
    leaving = asyncio.create_task(servers.leave(5))
    await until(lambda: process.current.leaving)

    await in_thread(operations.force_cancel, olivia, run_id, "It has to be now.")

    assert closed == [True]
    assert (await terminal(run_id)).status == "cancelled"
    await leaving


@pytest.mark.parametrize("where", ["answer", "slow_async", "heeding_sync", "hang", "hang_async"])
async def test_a_turn_that_does_not_end_in_time_is_interrupted(stage, servers, settings, where):
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


async def test_a_waiting_run_stays_when_the_server_leaves(stage, servers):
    stage.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await stage.start()
    waiting = await status(run_id, "waiting")

    await servers.leave()
    await servers.start()

    await in_thread(operations.answer, stage.owner, run_id, {waiting.questions[0]["id"]: "No"})
    assert (await terminal(run_id)).status == "completed"
    assert stage.marks.read() == ["answered No"]


async def test_a_tool_that_begins_while_the_server_leaves_is_known_to_have_begun(stage, servers, serve):
    """What says so to the log waits behind what the model said, and the graph is being stopped."""

    @tool
    async def pay() -> str:
        """Pay."""
        stage.marks.write("paid")
        for execution in process.current.executions.values():
            execution.stop(StopReason.SHUTDOWN)
        await asyncio.sleep(60)
        return "paid"

    serve(lambda: fan_out_graph(ScriptedModel(call("pay"), say("Done.")), [pay]))
    ended = await interrupted(await stage.start())

    assert stage.marks.read() == ["paid"]
    assert (await in_thread(ToolCall.objects.get)).effect == "unknown"
    run = await in_thread(Run.objects.select_related("session").get, id=ended.id)
    assert not await safety.is_safe(run, process.current.checkpoints)
