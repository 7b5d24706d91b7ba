"""What a stopped run leaves at work is counted while it works, bounded for each user, and starves nobody."""

import asyncio
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runs import operations
from runs.errors import TooManyStragglers
from runs.foundation.database import in_thread
from runs.lifecycle import stragglers
from runs.live import follow
from runs.models import Run, Worker
from runs.recovery import sweep
from runs.stopping.executor import TrackingExecutor
from runs.stopping.registry import ActivityCount
from tests.fakes import Hold, Round, call, calls, numbered, say, sync_graph
from tests.runs.harness import open_harness
from tests.runs.servers import NO_PROCESS
from tests.runs.waiting import at_rest, terminal, until


@pytest.fixture(autouse=True)
def _short_grace(settings):
    settings.RUNS_CANCEL_GRACE = 0.2


async def given_up(harness):
    """A cancelled run whose tool heeds nothing."""
    harness.script.clear()
    harness.script.add(call("slow_sync", seconds=60))
    before = harness.marks.count("slow_sync started")
    run_id = await harness.start()
    await harness.marks.seen("slow_sync started", before + 1)
    ended = await harness.cancelled(run_id)
    assert ended.status == "cancelled"
    return ended


async def two_given_up(harness):
    """A cancelled run with two threads that heed nothing, and end at the marks "one" and "two"."""
    harness.script.add(calls(("held_sync", {"mark": "one"}), ("held_sync", {"mark": "two"})))
    run_id = await harness.start()
    await until(lambda: threads_at_work(harness) == 2, what="both threads")
    ended = await harness.cancelled(run_id)
    assert ended.stragglers == 2
    return ended


def threads_at_work(harness):
    return sum(one.token.activity.alive().threads for one in list(harness.engine.executions.values()))


async def count_of(run, count):
    await until(Run.objects.filter(id=run.id, stragglers=count).exists, what=f"a count of {count}")


def shown(run):
    return operations.get_run(run.session.owner, run.id)["stragglers"]


@pytest.mark.parametrize(("tool", "arguments"), [("slow_sync", {"seconds": 60}), ("hang_async", {})])
async def test_a_tool_that_heeds_nothing_is_counted_until_it_ends(harness, release, tool, arguments):
    harness.script.add(call(tool, **arguments))
    run_id = await harness.start()
    await harness.marks.seen(f"{tool} started")

    ended = await harness.cancelled(run_id)

    assert ended.stragglers == 1  # as of the ending's transaction
    assert await in_thread(shown, ended) == 1
    release.set()
    await count_of(ended, 0)
    assert await in_thread(shown, ended) == 0


async def test_a_models_call_in_a_plain_nodes_thread_is_counted_until_it_ends(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks", build=sync_graph) as harness:
        harness.script.add(Round(Hold("silent"), numbered(2)))
        run_id = await harness.start()
        await harness.script.gate("silent").reached()

        ended = await harness.cancelled(run_id)

        assert (ended.status, ended.stragglers) == ("cancelled", 1)
        harness.script.gate("silent").open()
        await count_of(ended, 0)


async def test_a_run_that_stops_in_time_leaves_nothing(harness):
    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")

    assert (await harness.cancelled(run_id)).stragglers == 0


async def test_tasks_that_wait_for_one_another_count_as_one():
    assert ActivityCount(threads=2, tasks=3, processes=1).independent == 4
    assert ActivityCount().independent == 0


async def test_what_a_force_cancelled_run_leaves_is_counted_too(harness, olivia, release):
    harness.script.add(call("slow_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("slow_sync started")

    await in_thread(operations.force_cancel, olivia, run_id, "It hangs.")

    run = await terminal(run_id)
    await count_of(run, 1)
    release.set()
    await count_of(run, 0)


async def test_followers_hear_when_it_ends(harness, release):
    ended = await given_up(harness)
    items = follow.session(ended.session_id, None)
    assert isinstance(await anext(items), follow.SessionChanged)

    release.set()

    async with asyncio.timeout(10):
        while not isinstance(await anext(items), follow.SessionChanged):
            pass
    assert await in_thread(shown, ended) == 0
    await items.aclose()


async def test_a_dead_workers_stragglers_are_forgotten(harness):
    ended = await given_up(harness)
    assert ended.stragglers == 1
    await in_thread(Worker.objects.filter(id=ended.worker_id).update, pid=NO_PROCESS, pid_started="1")

    swept = await in_thread(sweep.sweep, uuid4())

    assert (swept.workers_lost, swept.stragglers_forgotten) == (1, 1)
    assert await in_thread(shown, ended) == 0


async def test_a_worker_taken_for_dead_does_not_bring_its_stragglers_back(harness):
    """Nobody would clear them: the run has no worker whose end the sweep could find."""
    ended = await two_given_up(harness)
    await in_thread(Worker.objects.filter(id=ended.worker_id).update, pid=NO_PROCESS, pid_started="1")
    await in_thread(sweep.sweep, uuid4())
    await harness.engine.beat()
    [execution] = harness.engine.stragglers

    harness.marks.write("one")

    await until(lambda: execution.token.activity.stragglers().threads == 1, what="the end of one")
    await asyncio.sleep(0)  # the loop hears of it
    await at_rest(harness.engine)
    assert (await harness.run(ended.id)).stragglers == 0
    harness.marks.write("two")


async def test_a_user_with_too_many_stragglers_starts_nothing_until_one_ends(harness, bob, settings, release):
    settings.RUNS_STRAGGLER_LIMIT = 2
    first = await given_up(harness)
    await given_up(harness)

    for start in (
        lambda: operations.start_turn(harness.owner, harness.session, "and now?"),
        lambda: operations.start_session(harness.owner, "and now?", agent="assistant"),
        lambda: operations.retry(harness.owner, first.id),
    ):
        with pytest.raises(TooManyStragglers, match="still at work"):
            await in_thread(start)
    of_bob = await in_thread(lambda: operations.start_session(bob, "hello", agent="assistant")["id"])
    assert (await terminal(of_bob)).status == "completed"

    release.set()
    await count_of(first, 0)
    await until(lambda: not Run.objects.filter(stragglers__gt=0).exists(), what="the end of the others")
    await harness.assert_next_completes()


async def test_one_of_several_that_ends_makes_room(harness, settings):
    settings.RUNS_STRAGGLER_LIMIT = 2
    ended = await two_given_up(harness)
    with pytest.raises(TooManyStragglers):
        await harness.start()

    harness.marks.write("one")

    await count_of(ended, 1)
    await harness.assert_next_completes()
    harness.marks.write("two")
    await count_of(ended, 0)


@pytest.mark.sqlite("reads how SQLite would go about it")
def test_admission_and_sweep_read_the_runs_with_stragglers_only(alice):
    with CaptureQueriesContext(connection) as captured:
        stragglers.refuse_too_many(alice)
        sweep.sweep()
    asked = [query["sql"] for query in captured.captured_queries if '"stragglers" > 0' in query["sql"]]
    assert len(asked) == 2
    with connection.cursor() as cursor:
        for sql in asked:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
            [step] = [row[3] for row in cursor.fetchall()]
            assert "INDEX run_straggling" in step


async def test_a_repeated_request_gets_its_run_whatever_is_at_work(harness, settings):
    settings.RUNS_STRAGGLER_LIMIT = 1
    harness.script.add(call("slow_sync", seconds=60))
    run_id = await harness.start("go", key="once")
    await harness.marks.seen("slow_sync started")
    await harness.cancelled(run_id)

    assert await harness.start("go", key="once") == run_id


async def test_more_stragglers_than_threads_do_not_starve_anothers_run(harness, bob, settings):
    threads = 2
    asyncio.get_running_loop().set_default_executor(TrackingExecutor(threads))
    settings.RUNS_STRAGGLER_LIMIT = 10
    for _ in range(threads + 1):
        await given_up(harness)
    harness.script.clear()
    harness.script.add(call("mark", x="served"), say("Served."))

    of_bob = await in_thread(lambda: operations.start_session(bob, "hello", agent="assistant")["id"])

    assert (await terminal(of_bob)).status == "completed"
    assert "served" in " ".join(harness.marks.read())
    assert await in_thread(Run.objects.filter(stragglers=1).count) == threads + 1
