"""Messages in bursts, tools over a resume, and what is told only after a commit."""

import asyncio
from contextlib import aclosing
from itertools import pairwise
from uuid import UUID

import pytest
from django.db import transaction

from runs import operations
from runs.foundation.database import in_thread
from runs.lifecycle import titles
from runs.live.follow import SessionChanged
from runs.states import TitleSource
from runs.worker.ending import StopReason
from tests.fakes import Hold, Round, call, numbered, say
from tests.runs.harness import open_harness
from tests.runs.waiting import event, status, terminal


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def test_a_burst_of_messages_sees_what_the_earlier_ones_did(harness):
    def respond(messages):
        done = any("marked once" in str(message.get("content")) for message in messages)
        return say("It is done.") if done else call("mark", x="once")

    harness.script.respond = respond

    runs = await asyncio.gather(*(harness.start(f"mark it, {n}", multitask="enqueue") for n in range(3)))

    ended = [await terminal(run_id) for run_id in runs]
    assert [run.status for run in ended] == ["completed"] * 3
    assert harness.marks.read() == ["once"]
    spans = sorted((run.started_at, run.finished_at) for run in ended)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
    history = await harness.history()
    assert [m["role"] for m in history if m["role"] == "user"] == ["user"] * 3


async def interrupted(harness, run_id):
    """Stop the execution as a shutdown would; the interrupted run."""
    harness.engine.executions[UUID(run_id)].stop(StopReason.SHUTDOWN)
    return await status(run_id, "interrupted")


async def test_a_tool_that_had_finished_is_not_run_again_on_resume(harness):
    harness.script.add(call("mark", x="once"), Round(numbered(3), Hold("answer"), numbered(3)))
    run_id = await harness.start()
    await harness.script.gate("answer").reached()
    await interrupted(harness, run_id)
    harness.script.clear()
    harness.script.add(say("Done."))

    resumed = await in_thread(operations.resume, harness.owner, run_id)

    assert (await terminal(resumed["id"])).status == "completed"
    assert harness.marks.read() == ["once"]
    assert (await harness.history())[-1]["text"] == "Done."


async def test_a_tool_that_may_have_run_is_run_again_only_at_the_users_word(harness, engine):
    harness.script.add(call("slow_async", seconds=0.5))
    run_id = await harness.start()
    await event(run_id, "tool.started")
    await interrupted(harness, run_id)
    await engine.sweep()
    assert (await harness.run(run_id)).resolution is None
    begun = harness.marks.count("slow_async started")
    harness.script.clear()
    harness.script.add(say("Done."))

    resumed = await in_thread(operations.resume, harness.owner, run_id)

    assert (await terminal(resumed["id"])).status == "completed"
    assert harness.marks.count("slow_async started") == begun + 1
    await harness.assert_sendable()


async def test_what_is_told_can_be_read(harness):
    async def rename():
        for n in range(100):
            await in_thread(operations.rename_session, harness.owner, harness.session, f"Title {n}")

    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        await anext(items)
        renaming = asyncio.create_task(rename())
        async for item in items:
            if isinstance(item, SessionChanged):
                now = await in_thread(operations.session_snapshot, harness.owner, harness.session)
                told, read = (int(one["title"].removeprefix("Title ")) for one in (item.session, now))
                assert read >= told
                if told == 99:
                    break
        await renaming


async def test_what_is_rolled_back_is_not_told(harness, monkeypatch):
    told = []
    monkeypatch.setattr("runs.live.bus.publish", lambda group, message: told.append((group, message)))

    def change_and_fail():
        with transaction.atomic():
            titles.rename(UUID(harness.session), "Never", TitleSource.USER)
            raise RuntimeError("after the change")

    with pytest.raises(RuntimeError):
        await in_thread(change_and_fail)

    assert told == []
    assert (await in_thread(operations.session_snapshot, harness.owner, harness.session))["title"] == ""
