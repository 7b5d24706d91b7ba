"""The cancel token, the tasks and the processes of a run."""

import asyncio
import contextvars
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token, current
from runs.stopping.process_group import ProcessGroup
from runs.stopping.registry import ActivityCount
from runs.stopping.tracking import track_tasks

LIMIT = 20  # seconds after which something that should happen at once is taken to be stuck


@pytest.fixture
def token():
    """The token of a run; whatever it started is ended with the test."""
    token = CancelToken()
    yield token
    token.activity.kill_processes()
    token.activity.cancel_tasks()


async def eventually(condition):
    """Wait for what the loop or another thread is just about to do."""
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (conditions here have no event)
            await asyncio.sleep(0.002)


def lives(pid):
    """Whether a process exists that is more than an entry nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


# The token


def test_outside_of_a_run_there_is_a_token_that_is_never_cancelled():
    assert not cancel_token().cancelled
    cancel_token().cancel()
    assert not cancel_token().cancelled


def test_cancel_happens_once(token):
    calls = []
    token.on_cancel(lambda: calls.append(token.cancelled))
    assert token.cancel()
    assert not token.cancel()
    assert calls == [True]


def test_raise_if_cancelled_is_no_failure_a_tool_could_swallow(token):
    token.raise_if_cancelled()
    token.cancel()

    def tool():
        try:
            token.raise_if_cancelled()
        except Exception:
            return "taken for a failure"

    with pytest.raises(RunCancelled):
        tool()


def test_wait_ends_with_the_cancel_or_with_its_time(token):
    assert not token.wait(0.01)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(token.wait(LIMIT)))
    thread.start()
    token.cancel()
    thread.join(LIMIT)
    assert answers == [True]
    assert token.wait(LIMIT)


def test_a_callback_comes_at_once_when_the_run_is_cancelled_already(token):
    token.cancel()
    calls = []
    remove = token.on_cancel(lambda: calls.append(threading.current_thread()))
    assert calls == [threading.current_thread()]
    remove()


def test_a_removed_callback_is_not_called(token):
    calls = []
    remove = token.on_cancel(lambda: calls.append("removed"))
    token.on_cancel(lambda: calls.append("kept"))
    remove()
    remove()
    token.cancel()
    assert calls == ["kept"]


def test_a_failing_callback_is_logged_and_does_not_stop_the_others(token, caplog):
    calls = []
    token.on_cancel(lambda: 1 / 0)
    token.on_cancel(lambda: calls.append("called"))
    token.cancel()
    assert calls == ["called"]
    assert "ZeroDivisionError" in caplog.text


def test_each_callback_is_called_exactly_once_however_registration_and_cancel_race():
    for _ in range(300):
        token = CancelToken()
        calls = []
        start = threading.Barrier(3)

        def register(token=token, calls=calls, start=start):
            start.wait(LIMIT)
            for _ in range(10):
                token.on_cancel(lambda: calls.append(1))

        def cancel(token=token, start=start):
            start.wait(LIMIT)
            token.cancel()

        threads = [threading.Thread(target=target) for target in (register, cancel, cancel)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert len(calls) == 10


# Tasks


async def test_tasks_of_a_run_are_seen_in_whatever_depth(token):
    track_tasks(asyncio.get_running_loop())
    release = asyncio.Event()
    inner: list[asyncio.Task] = []

    async def tool():
        inner.append(asyncio.create_task(release.wait()))

    async def graph():
        await asyncio.create_task(tool())
        await release.wait()

    current.set(token)
    root = asyncio.create_task(graph())
    current.set(None)
    unrelated = asyncio.create_task(release.wait())
    await eventually(lambda: inner)
    await eventually(lambda: token.activity.alive() == ActivityCount(tasks=2))
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

    async def stubborn():
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                asyncio.create_task(release.wait())  # noqa: RUF006 (what a straggler does)

    current.set(token)
    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(asyncio.sleep(LIMIT))]
    current.set(None)
    await asyncio.sleep(0)
    token.cancel()
    assert token.activity.cancel_tasks() == 2
    assert not await token.activity.wait_until_idle(0.05)
    assert tasks[1].cancelled()
    assert token.activity.give_up(idle.set) == ActivityCount(tasks=2)
    assert await token.activity.wait_until_idle(0)
    tasks[0].cancel()
    await eventually(
        lambda: token.activity.stragglers() == ActivityCount(tasks=3)
    )  # a straggler's task is one, too
    assert not idle.is_set()
    release.set()
    await asyncio.wait_for(idle.wait(), LIMIT)
    assert token.activity.stragglers() == ActivityCount()


async def test_a_straggler_that_begins_when_all_others_have_ended_is_told_of_too(token):
    """A thread may have asked for a task in its last moment."""
    track_tasks(asyncio.get_running_loop())
    told = []
    assert token.activity.give_up(lambda: told.append(token.activity.stragglers())) == ActivityCount()
    current.set(token)
    late = asyncio.create_task(asyncio.sleep(0))
    current.set(None)
    assert token.activity.stragglers() == ActivityCount(tasks=1)
    await late
    await eventually(lambda: told == [ActivityCount()] * 2)


# Processes

# A leader that ignores SIGTERM or not, and a child and a grandchild that tell their numbers.
FAMILY = """
import os, signal, subprocess, sys, time
if {ignore}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "sleep 600 & echo $!; wait"
p = subprocess.Popen(["sh", "-c", child])
os.write(1, b"%d %d\\n" % (os.getpid(), p.pid))  # at once: the grandchild writes there, too
{then}
"""


def start_family(token, ignore=False, then="time.sleep(600)"):
    """Start it; the process and the numbers of all three."""
    code = FAMILY.format(ignore=ignore, then=then)
    process = token.start_process([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    numbers = [int(number) for _ in range(2) for number in process.stdout.readline().split()]
    assert len(numbers) == 3
    process.stdout.close()
    return process, numbers


async def test_terminating_ends_the_whole_group(token):
    process, family = start_family(token)
    assert all(lives(pid) for pid in family)
    assert token.activity.alive() == ActivityCount(processes=1)
    token.cancel()
    token.activity.terminate_processes()
    assert await token.activity.wait_until_idle(LIMIT)
    assert not any(lives(pid) for pid in family)
    assert process.wait(LIMIT) == -signal.SIGTERM


async def test_killing_ends_a_group_that_ignores_the_request(token):
    process, family = start_family(token, ignore=True)
    token.activity.terminate_processes()
    assert not await token.activity.wait_until_idle(0.2)
    token.activity.kill_processes()
    assert await token.activity.wait_until_idle(LIMIT)
    assert not any(lives(pid) for pid in family)
    assert process.wait(LIMIT) == -signal.SIGKILL


async def test_a_group_lives_until_its_last_grandchild_has_ended(token):
    process, family = start_family(token, then="")
    assert process.wait(LIMIT) == 0
    assert not await token.activity.wait_until_idle(0.2)
    assert token.activity.alive() == ActivityCount(processes=1)
    assert sum(lives(pid) for pid in family) == 2
    token.activity.terminate_processes()
    assert await token.activity.wait_until_idle(LIMIT)
    assert not any(lives(pid) for pid in family)


async def test_a_process_that_ends_by_itself_gives_its_own_exit_code(token):
    process = token.start_process(["sh", "-c", "exit 7"])
    assert await token.activity.wait_until_idle(LIMIT)
    assert process.wait(LIMIT) == 7
    assert process.poll() == 7


def test_a_cancelled_run_starts_no_process(token, tmp_path):
    token.cancel()
    with pytest.raises(RunCancelled):
        token.start_process(["touch", str(tmp_path / "started")])
    assert list(tmp_path.iterdir()) == []


async def test_a_process_that_was_just_being_started_gets_the_signal_it_missed(token):
    token.activity.terminate_processes()
    group = ProcessGroup(["sleep", "600"])
    token.activity.add_process(group)
    assert await token.activity.wait_until_idle(LIMIT)
    assert group.process.wait(LIMIT) == -signal.SIGTERM


async def test_no_signal_goes_to_a_group_that_is_gone(token, monkeypatch):
    token.start_process(["true"])
    assert await token.activity.wait_until_idle(LIMIT)
    group = ProcessGroup(["true"])
    gone = threading.Event()
    group.when_gone(lambda _: gone.set())
    await asyncio.to_thread(gone.wait, LIMIT)
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("the number may be somebody else's by now"))
    group.signal(signal.SIGKILL)
    token.activity.kill_processes()


async def test_a_process_given_up_on_is_a_straggler_until_it_ends(token):
    _, family = start_family(token, ignore=True)
    idle = threading.Event()
    token.cancel()
    token.activity.terminate_processes()
    assert token.activity.give_up(idle.set) == ActivityCount(processes=1)
    assert token.activity.stragglers() == ActivityCount(processes=1)
    token.activity.kill_processes()
    await asyncio.to_thread(idle.wait, LIMIT)
    assert token.activity.stragglers() == ActivityCount()
    await eventually(lambda: not any(lives(pid) for pid in family))


async def test_many_processes_against_a_cancel_leave_none_behind():
    """Threads start processes while the run is cancelled at a random moment: none may survive it."""

    chance = random.Random(3)
    for _ in range(20):
        token = CancelToken()
        started: list[subprocess.Popen] = []

        def tool(token=token, started=started):
            try:
                while True:
                    started.append(token.start_process(["sleep", "600"]))
            except RunCancelled:
                pass

        threads = [threading.Thread(target=tool) for _ in range(2)]
        for thread in threads:
            thread.start()
        await asyncio.sleep(chance.random() / 50)
        token.cancel()
        token.activity.terminate_processes()
        for thread in threads:
            await asyncio.to_thread(thread.join, LIMIT)
        assert await token.activity.wait_until_idle(LIMIT)
        assert not any(lives(process.pid) for process in started)
