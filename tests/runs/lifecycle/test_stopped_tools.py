"""A cancel stops the tools at work, gives up on those that heed nothing, and starts no other."""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from runs.foundation.database import in_thread
from runs.models import Cancellation, ToolCall
from runs.worker import graph_input
from tests.fakes import (
    SHAPES,
    call,
    calls,
    fan_out_graph,
    plain_graph,
    say,
    sequential_graph,
)
from tests.runs.harness import open_harness
from tests.runs.waiting import PATIENCE, event, log_of, terminal, until


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
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
    remove, has_left = execution.token.activity.remove_thread, threading.Event()
    monkeypatch.setattr(
        execution.token.activity, "remove_thread", lambda thread: (remove(thread), has_left.set())
    )

    release.set()
    assert has_left.wait(
        10 * PATIENCE
    )  # in the loop's thread: it hears of the result when the thread has left
    go_on.set()

    assert (await terminal(run_id)).status == "cancelled"
    await until(lambda: ToolCall.objects.get().effect == "done", what="the straggler's effect")
    await until(lambda: not harness.engine.stragglers, 2, "the end of every straggler")


async def test_a_run_that_its_own_checkpoint_finds_lost_leaves_nothing_at_work(harness, serve):
    """Nobody has told the execution: its saver is the first to find out."""
    begun, go_on, left = asyncio.Event(), asyncio.Event(), []

    async def begin_something(state):
        left.append(asyncio.create_task(asyncio.Event().wait()))
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
    harness.script.add(call("spawn", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("spawn started")
    assert processes_of(harness.marks.path)

    await harness.cancelled(run_id)

    assert processes_of(harness.marks.path) == []
    assert "spawn ended" not in harness.marks.read()
    assert (await in_thread(Cancellation.objects.get)).escalated is False


def processes_of(path):
    """The command lines that name this file. One that has ended and is not collected yet has none."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since
            found.append(entry.read_bytes())
    return [words for words in found if str(path).encode() in words]


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


async def test_a_tools_own_cancelled_error_is_its_failure_and_no_cancel(harness):
    harness.script.add(call("cancelling"), say("Never mind."))
    run_id = await harness.start()

    ended = await terminal(run_id)

    assert ended.status in ("failed", "completed")
    assert ended.cancel_requested_at is None
    await harness.assert_sendable()
    await harness.assert_next_completes()
