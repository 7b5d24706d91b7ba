"""As the default executor of a loop, it shows the threads of a run, and lets the process leave."""

import asyncio
import random
import subprocess
import sys
import threading

import pytest

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token, current
from runs.stopping.registry import ActivityCount
from runs.stopping.tracking import track_tasks
from tests import ROOT
from tests.runs.stopping.threads import LIMIT


async def test_the_threads_of_a_run_are_seen_through_asyncio(executor, gate):
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    token = CancelToken()
    started = asyncio.Event()

    def block():
        loop.call_soon_threadsafe(started.set)
        gate.wait()
        return cancel_token()

    current.set(token)
    task = asyncio.create_task(asyncio.to_thread(block))
    plain = loop.run_in_executor(None, cancel_token)
    current.set(None)
    assert await plain is token
    await started.wait()
    assert token.activity.alive().threads == 1
    assert not await token.activity.wait_until_idle(0.01)
    idle = asyncio.create_task(token.activity.wait_until_idle(LIMIT))
    await asyncio.sleep(0)
    gate.set()
    assert await idle
    assert await task is token


async def test_a_thread_that_raises_run_cancelled_cancels_the_task_that_awaits_it(executor):
    asyncio.get_running_loop().set_default_executor(executor)
    token = CancelToken()
    waiting = threading.Event()

    def tool():
        try:
            waiting.set()
            assert cancel_token().wait(LIMIT)
            cancel_token().raise_if_cancelled()
        except Exception:  # what tools do with any failure
            return "swallowed"

    current.set(token)
    task = asyncio.create_task(asyncio.to_thread(tool))
    current.set(None)
    await asyncio.to_thread(waiting.wait, LIMIT)
    token.cancel()
    with pytest.raises(RunCancelled):
        await task
    assert task.cancelled()
    assert await token.activity.wait_until_idle(LIMIT)


async def test_work_refused_after_a_cancel_reaches_async_code_as_cancelled_error(executor):
    asyncio.get_running_loop().set_default_executor(executor)
    token = CancelToken()
    token.cancel()
    current.set(token)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.to_thread(pytest.fail, "it started")
    current.set(None)


async def test_wait_until_idle_wakes_whatever_ends_last(executor):
    """Threads and tasks end in random order, many times: the last is never missed, and none comes early."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    track_tasks(loop)
    chance = random.Random(2)
    for _ in range(150):
        token = CancelToken()
        threads, others = [threading.Event(), threading.Event()], [asyncio.Event(), asyncio.Event()]
        current.set(token)
        tasks = [asyncio.create_task(asyncio.to_thread(gate.wait, LIMIT)) for gate in threads]
        tasks += [asyncio.create_task(gate.wait()) for gate in others]
        current.set(None)
        idle = asyncio.create_task(token.activity.wait_until_idle(LIMIT))
        gates = chance.sample([*threads, *others], 4)
        for gate in gates:
            await asyncio.sleep(0)
            assert not idle.done()
            gate.set()
        assert await idle
        assert all(task.done() for task in tasks)
        assert token.activity.alive() == ActivityCount()


HUNG = """
import asyncio, sys, threading, time
from runs.stopping.executor import TrackingExecutor
from runs.stopping.cancel_token import CancelToken, current

started = threading.Event()

def hang():
    started.set()
    threading.Event().wait()

async def main():
    asyncio.get_running_loop().set_default_executor(TrackingExecutor())
    token = CancelToken()
    current.set(token)
    asyncio.get_running_loop().run_in_executor(None, hang)
    current.set(None)
    await asyncio.to_thread(started.wait)
    token.cancel()
    {give_up}
    print("leaving", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("give_up", ["token.activity.give_up()", "pass"])
def test_the_interpreter_leaves_in_time_with_a_hung_thread(give_up):
    done = subprocess.run(
        [sys.executable, "-c", HUNG.format(give_up=give_up)],
        cwd=ROOT, timeout=LIMIT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "leaving\n"
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
