"""What goes on by itself after an interruption, how often, and when two look at once."""

import asyncio
from uuid import uuid4

import pytest

from runs import agents, this_process
from runs.foundation.database import in_thread
from runs.models import Run, ToolCall
from runs.recovery import sweep
from runs.states import EventType
from tests.fakes import Hold, Round, call, numbered, say, spelled
from tests.runs.recovery.steps import (
    cut_in_answer,
    gone_on_with,
    interrupted,
    opening,
    resumed,
    snapshot,
    told,
)
from tests.runs.waiting import event, log_of, terminal, until


async def test_an_answer_that_was_cut_goes_on_by_itself(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as harness:
        harness.script.add(call("mark", x="once"))
        run_id = await cut_in_answer(harness)
        harness.script.clear()
        harness.script.add(say("The whole answer."))

        await servers.restart()

        following = await terminal((await gone_on_with(run_id)).id)
        assert following.status == "completed", following.error_message
        assert (following.automatic_resumes, following.requested_by_id) == (1, alice.pk)
        assert (await harness.run(run_id)).resolution == "resumed"
        assert harness.marks.read() == ["once"]
        assert (await harness.history())[-1]["text"] == "The whole answer."


async def test_at_most_so_many_times_in_a_row(servers, alice, serve, tmp_path, release, settings):
    settings.RUNS_MAX_RESUMES = 2
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as harness:
        run_id = await cut_in_answer(harness, name="cut 0")
        for n in (1, 2):
            harness.script.add(Round(numbered(5), Hold(f"cut {n}")))
            await servers.restart()
            run_id = (await gone_on_with(run_id)).id
            await until(lambda run_id=run_id: told(run_id) == "w1 w2 w3 w4 w5")

        await servers.restart()

        left = await interrupted(run_id)
        assert (left.automatic_resumes, left.resolution) == (2, None)
        await this_process.engine.sweep()
        assert (await snapshot(harness))["status"] == "interrupted"
        assert await in_thread(Run.objects.count) == 3
        by_hand = await resumed(harness, run_id)
        assert (by_hand.status, by_hand.automatic_resumes) == ("completed", 0)


@pytest.mark.parametrize("idempotent", [False, True], ids=["unknown effect", "idempotent"])
async def test_a_tool_that_may_have_worked_runs_again_only_if_it_may(
    servers, alice, serve, tmp_path, release, idempotent
):
    harmless = frozenset({"slow_async"}) if idempotent else frozenset()
    policy = {"on_interrupt": "resume", "idempotent_tools": harmless}
    async with opening(alice, serve, tmp_path, release, **policy) as harness:
        harness.script.add(call("slow_async", seconds=1))
        run_id = await harness.start()
        await event(run_id, "tool.started")
        assert (await in_thread(ToolCall.objects.get)).effect is None

        await servers.restart()

        await interrupted(run_id)
        await this_process.engine.sweep()
        started = harness.marks.count("slow_async started")
        if idempotent:
            assert (await terminal((await gone_on_with(run_id)).id)).status == "completed"
            assert harness.marks.count("slow_async started") == 2
        else:
            assert (started, await in_thread(Run.objects.count)) == (1, 1)
            assert (await snapshot(harness))["status"] == "interrupted"


async def test_a_tool_does_not_begin_before_its_start_is_in_the_log_so_its_turn_goes_on(
    servers, alice, serve, tmp_path, release, monkeypatch
):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as harness:
        harness.script.add(call("mark", x="1"), say("Done."))
        waits_for_the_log = asyncio.Event()

        async def step(writer):
            if any(EventType.TOOL_STARTED in (type for type, _ in log._entries) for log in writer._logs):
                waits_for_the_log.set()
                await asyncio.Event().wait()
            writer._something.clear()

        monkeypatch.setattr("runs.log.writer.EventWriter.step", step)
        run_id = await harness.start()
        await waits_for_the_log.wait()
        await servers.crash()
        monkeypatch.undo()
        assert await in_thread(ToolCall.objects.count) == 0

        await servers.start()
        await interrupted(run_id)
        await this_process.engine.sweep()

        (resumed,) = await in_thread(list, Run.objects.exclude(id=run_id))
        assert (await terminal(resumed.id)).status == "completed"
        assert harness.marks.count("1") == 1


@pytest.mark.parametrize("call_id", ["call_1", "call_" + "x" * 300], ids=["short id", "long id"])
async def test_what_was_drained_between_two_steps_goes_on_on_the_next_server(
    servers, alice, serve, tmp_path, release, call_id
):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as harness:
        harness.script.add(Round(numbered(3), Hold("cut"), spelled("mark", {"x": "1"}, id=call_id)))
        run_id = await harness.start()
        await harness.script.gate("cut").reached()
        leaving = asyncio.create_task(servers.leave(5))
        (execution,) = this_process.engine.executions.values()
        await until(lambda: execution._control.drain_requested)
        harness.script.gate("cut").open()
        await leaving
        ended = await interrupted(run_id)
        assert (await in_thread(ToolCall.objects.get)).effect == "none"
        assert harness.marks.read() == []
        assert [e.data["reason"] for e in await log_of(ended.id) if e.type == "run.interrupted"] == [
            "shutdown"
        ]

        await servers.start()

        following = await terminal((await gone_on_with(run_id)).id)
        assert following.status == "completed", following.error_message
        assert harness.marks.read() == ["1"]
        assert [m["text"] for m in await harness.history()] == ["go", "w1 w2 w3", "All right."]


async def test_an_agent_may_dismiss_what_was_interrupted(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="dismiss") as harness:
        run_id = await cut_in_answer(harness)
        queued = await harness.start("next", multitask="enqueue")
        harness.script.clear()

        await servers.restart()

        assert (await terminal(queued)).status == "completed"
        assert (await harness.run(run_id)).resolution == "dismissed"
        assert (await snapshot(harness))["status"] == "idle"
        await harness.assert_sendable()


async def test_a_turn_of_an_agent_that_is_gone_is_left_as_it_is(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release, on_interrupt="resume") as harness:
        run_id = await cut_in_answer(harness)
        await servers.crash()
        serve(other=lambda: None)

        await servers.start()
        await this_process.engine.sweep()

        assert (await interrupted(run_id)).resolution is None


async def test_two_who_recover_at_once_resume_once(servers, alice, serve, tmp_path, release):
    async with opening(alice, serve, tmp_path, release) as harness:
        run_id = await cut_in_answer(harness)
        await servers.restart()
        await interrupted(run_id)
        harness.script.clear()
        policy = agents.Policy(on_interrupt="resume")
        harness.script.add(Round(Hold("again")))
        agents._function("assistant").policy = policy

        swept = await asyncio.gather(
            *(sweep.recover(this_process.engine.checkpoints, this_process.engine.id) for _ in range(4))
        )

        assert sum(one.runs_resumed for one in swept) == 1
        assert await in_thread(Run.objects.filter(resumes=run_id).count) == 1


async def test_two_who_sweep_at_once_reclaim_once(harness, servers):
    run_id = await cut_in_answer(harness)
    await servers.crash()

    swept = await asyncio.gather(*(in_thread(sweep.sweep, uuid4()) for _ in range(4)))

    assert sum(one.runs_interrupted for one in swept) == 1
    assert sum(one.workers_lost for one in swept) == 1
    assert [e.type for e in await log_of(run_id)].count("run.interrupted") == 1
    await servers.start()
