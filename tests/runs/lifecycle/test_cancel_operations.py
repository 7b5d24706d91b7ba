"""A cancel is one operation for all who ask, settles with the end of its run, and is the only end."""

import asyncio
from uuid import UUID

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.lifecycle import endings
from runs.models import Cancellation, Session
from runs.worker import graph_input
from tests.fakes import (
    call,
    say,
)
from tests.runs.waiting import log_of, terminal, until


async def test_ten_concurrent_cancels_are_one_operation(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    async def one(n):
        if n % 2:
            accepted = await in_thread(operations.cancel_session, harness.owner, harness.session)
        else:
            accepted = await harness.cancel(run_id)
        return await operations.wait_for_cancellation(accepted, 10)

    answers = await asyncio.gather(*(one(n) for n in range(10)))

    assert len({answer["id"] for answer in answers}) == 1
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]["outcome"] == "cancelled"
    assert await in_thread(Cancellation.objects.count) == 1
    assert [e.type for e in await log_of(run_id)].count("run.cancelled") == 1
    assert (await in_thread(Session.objects.get)).cancellation_revision == 2


async def test_pending_is_true_before_the_turn_has_ended(harness, settings):
    settings.RUNS_CANCEL_GRACE = 1
    harness.script.add(call("hang"))
    run_id = await harness.start()
    await harness.marks.seen("hang started")
    other = await in_thread(operations.create_session, harness.owner)

    await harness.cancel(run_id)
    pending = await in_thread(operations.session_snapshot, harness.owner, harness.session)

    assert (pending["cancellation_pending"], pending["status"]) == (True, "running")
    assert pending["active_run"]["cancellation"]["settled_at"] is None
    untouched = await in_thread(operations.session_snapshot, harness.owner, other["id"])
    assert (untouched["cancellation_pending"], untouched["cancellation_revision"]) == (False, 0)
    await terminal(run_id)
    settled = await in_thread(operations.session_snapshot, harness.owner, harness.session)
    assert (settled["cancellation_pending"], settled["cancellation_revision"]) == (False, 2)


@pytest.mark.parametrize(("moment", "ending"), [("before", "cancelled"), ("after", "completed")])
async def test_a_cancel_just_before_or_after_the_natural_end_gives_one_ending(
    harness, monkeypatch, moment, ending
):
    harness.script.add(say("a b c d"))
    finish, accepted = endings.finish, []

    def cancel():
        if not accepted:
            accepted.append(operations.cancel_session(harness.owner, harness.session))

    def finish_while_it_is_cancelled(*args, **how):
        if moment == "before":
            cancel()
        outcome = finish(*args, **how)
        cancel()
        return outcome

    monkeypatch.setattr(endings, "finish", finish_while_it_is_cancelled)
    run_id = await harness.start()
    ended = await terminal(run_id)
    await until(lambda: accepted)

    answer = await operations.wait_for_cancellation(accepted[0], 10)
    log = [e.type for e in await log_of(run_id)]
    assert ended.status == ending
    assert sum(t in ("run.completed", "run.failed", "run.cancelled", "run.interrupted") for t in log) == 1
    assert log[-1] == f"run.{ending}"
    assert answer["outcome"] == ("cancelled" if ending == "cancelled" else "already_finished")
    await harness.assert_sendable()


async def test_a_cancel_of_a_turn_that_breaks_settles_at_once(harness, monkeypatch):
    async def be_cancelled_and_break(graph, saver, turn):
        await harness.cancel(str(turn.run.id))
        raise RuntimeError("the graph's own reducer")

    with monkeypatch.context() as patched:
        patched.setattr(graph_input, "begin", be_cancelled_and_break)
        assert (await terminal(await harness.start())).status == "cancelled"
    assert (await in_thread(Cancellation.objects.get)).outcome == "cancelled"
    await harness.assert_next_completes()


async def test_the_operation_goes_on_without_its_requester(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    waiting = asyncio.create_task(_cancel_and_wait(harness, run_id))
    await until(Cancellation.objects.exists)
    waiting.cancel()

    assert (await terminal(run_id)).status == "cancelled"


async def _cancel_and_wait(harness, run_id):
    return await operations.wait_for_cancellation(await harness.cancel(run_id), None)


async def test_after_a_force_cancel_nothing_of_the_run_is_written(harness, olivia, settings):
    """The execution is alive and in the middle of its work when an operator takes the run away."""
    settings.RUNS_STEP_LIMIT = 10_000  # it goes on for as long as nobody stops it
    for n in range(10):
        await harness.open_session()
        harness.script.respond = lambda messages, n=n: call("mark", x=str(n))
        before = len(harness.ledger.calls)
        run_id = await harness.start()
        await harness.ledger.called(before + 2 + n)

        await in_thread(operations.force_cancel, olivia, run_id, "It has to end.")

        log, state = await _written(run_id, harness)
        execution = harness.engine.executions.get(UUID(run_id))
        if execution is not None:
            await execution.ended.wait()
        assert await _written(run_id, harness) == (log, state)
        assert log[-1] == "run.cancelled"
        harness.script.respond = None
        await harness.assert_next_completes()
        await harness.assert_sendable()


async def _written(run_id, harness):
    saver = harness.engine.checkpoints.reader()
    config = {"configurable": {"thread_id": harness.session}}
    tuples = [
        (found.config["configurable"]["checkpoint_id"], len(found.pending_writes or []))
        async for found in saver.alist(config)
    ]
    return [entry.type for entry in await log_of(run_id)], tuples
