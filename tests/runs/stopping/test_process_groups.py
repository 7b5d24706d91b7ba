"""Processes that a run starts end with their whole group."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runs.stopping.cancel_token import CancelToken, RunCancelled
from runs.stopping.process_group import ProcessGroup
from runs.stopping.registry import ActivityCount
from tests.runs.stopping.threads import LIMIT


def lives(pid):
    """Whether a process exists that is more than an entry nobody has collected."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


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
    assert not any(lives(pid) for pid in family)


async def test_many_processes_against_a_cancel_leave_none_behind():
    """Threads start processes while the run is cancelled at a random moment: none may survive it."""

    chance = random.Random(3)
    for _ in range(20):
        token = CancelToken()
        started: list[subprocess.Popen] = []
        one_more = threading.Semaphore(0)

        def tool(token=token, started=started, one_more=one_more):
            try:
                while True:
                    started.append(token.start_process(["sleep", "600"]))
                    one_more.release()
            except RunCancelled:
                pass

        threads = [threading.Thread(target=tool) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(chance.randrange(12)):
            await asyncio.to_thread(one_more.acquire, timeout=LIMIT)
        token.cancel()
        token.activity.terminate_processes()
        for thread in threads:
            await asyncio.to_thread(thread.join, LIMIT)
        assert await token.activity.wait_until_idle(LIMIT)
        assert not any(lives(process.pid) for process in started)
