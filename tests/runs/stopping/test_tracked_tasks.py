"""Tasks that begin in a run's context are known and cancelled with it, and may be given up on."""

import asyncio
import contextvars

from runs.stopping.cancel_token import current
from runs.stopping.registry import ActivityCount
from runs.stopping.tracking import track_tasks
from tests.runs.stopping.threads import LIMIT


async def test_tasks_of_a_run_are_seen_in_whatever_depth(token):
    track_tasks(asyncio.get_running_loop())
    begun, release = asyncio.Event(), asyncio.Event()
    inner: list[asyncio.Task] = []

    async def tool():
        inner.append(asyncio.create_task(release.wait()))

    async def graph():
        await asyncio.create_task(tool())
        begun.set()
        await release.wait()

    current.set(token)
    root = asyncio.create_task(graph())
    current.set(None)
    unrelated = asyncio.create_task(release.wait())
    await begun.wait()
    assert token.activity.alive() == ActivityCount(tasks=2)
    assert not await token.activity.wait_until_idle(0.01)
    release.set()
    assert await token.activity.wait_until_idle(LIMIT)
    assert root.done()
    assert inner[0].done()
    assert await unrelated


async def test_the_context_a_task_is_given_counts_not_the_one_it_is_created_in(token):

    track_tasks(asyncio.get_running_loop())
    loop = asyncio.get_running_loop()
    own = contextvars.Context()
    own.run(current.set, token)
    of_the_run = loop.create_task(asyncio.sleep(0), context=own)
    assert token.activity.alive() == ActivityCount(tasks=1)
    current.set(token)
    of_nobody = loop.create_task(asyncio.sleep(0), context=contextvars.Context())
    current.set(None)
    assert token.activity.alive() == ActivityCount(tasks=1)
    await asyncio.gather(of_the_run, of_nobody)


async def test_a_task_factory_that_was_there_goes_on_making_the_tasks(token):
    loop = asyncio.get_running_loop()
    made = []

    def factory(loop, coroutine, **options):
        task = asyncio.Task(coroutine, loop=loop, **options)
        made.append(task)
        return task

    loop.set_task_factory(factory)
    track_tasks(loop)
    current.set(token)
    task = asyncio.create_task(asyncio.sleep(0), name="named")
    current.set(None)
    assert made == [task]
    assert task.get_name() == "named"
    assert token.activity.alive() == ActivityCount(tasks=1)
    await task


async def test_cancel_tasks_ends_those_that_listen_and_giving_up_covers_the_others(token):
    track_tasks(asyncio.get_running_loop())
    release = asyncio.Event()
    idle = asyncio.Event()
    swallowed = asyncio.Semaphore(0)

    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                asyncio.create_task(release.wait())  # noqa: RUF006 (what a straggler does)
                swallowed.release()

    current.set(token)
    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(release.wait())]
    current.set(None)
    await asyncio.sleep(0)
    token.cancel()
    assert token.activity.cancel_tasks() == 2
    await swallowed.acquire()
    assert not await token.activity.wait_until_idle(0)
    assert tasks[1].cancelled()
    assert token.activity.give_up(idle.set) == ActivityCount(tasks=2)
    assert await token.activity.wait_until_idle(0)
    tasks[0].cancel()
    await swallowed.acquire()
    assert token.activity.stragglers() == ActivityCount(tasks=3)  # a straggler's task is one, too
    assert not idle.is_set()
    release.set()
    await asyncio.wait_for(idle.wait(), LIMIT)
    assert token.activity.stragglers() == ActivityCount()


async def test_a_straggler_that_begins_when_all_others_have_ended_is_told_of_too(token):
    """A thread may have asked for a task in its last moment."""
    track_tasks(asyncio.get_running_loop())
    told = asyncio.Queue()
    assert token.activity.give_up(lambda: told.put_nowait(token.activity.stragglers())) == ActivityCount()
    assert told.get_nowait() == ActivityCount()
    current.set(token)
    late = asyncio.create_task(asyncio.sleep(0))
    current.set(None)
    assert token.activity.stragglers() == ActivityCount(tasks=1)
    await late
    assert await asyncio.wait_for(told.get(), LIMIT) == ActivityCount()
