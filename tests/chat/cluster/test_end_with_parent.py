"""Whatever a process has bound to itself ends with it, however it ends."""

import subprocess
import sys
import time

import psutil
import pytest

from chat.cluster import end_with_parent
from tests import ROOT

SECONDS = 20

# Starts "sleep" that ends with its parent, tells its process id, and waits to be killed.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([*sys.argv[1:], str(os.getpid()), "SIGKILL", "", "sleep", "120"])
print(child.pid, flush=True)
sys.stdin.read()
"""
ELSEWHERE = """
import sys
sys.platform = "elsewhere"
from chat.cluster import end_with_parent
end_with_parent.main(int(sys.argv[1]), end_with_parent.signal.Signals[sys.argv[2]], sys.argv[3], sys.argv[4:])
"""
WAYS = {
    "by the kernel": [sys.executable, "-I", "-S", end_with_parent.__file__],
    "by a guard": [sys.executable, "-c", ELSEWHERE],
}


@pytest.fixture(params=WAYS)
def ends_with_parent(request):
    """The parent, and the processes that hang on it once "sleep" is one of them."""
    command = [sys.executable, "-c", PARENT, *WAYS[request.param]]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        try:
            child = psutil.Process(int(parent.stdout.readline()))
            while not any(one.name() == "sleep" for one in (child, *child.children())):
                psutil.wait_procs([child], 0.05)
            yield parent, [child, *child.children()]
        finally:
            parent.kill()


def gone(processes):
    """Whether they all end in time; what its parent has not collected has ended all the same."""
    deadline = time.monotonic() + SECONDS
    while (lives := any(map(works, processes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not lives


def works(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_parent_leaves_nothing(ends_with_parent):
    parent, processes = ends_with_parent
    parent.kill()
    assert gone(processes)


def test_a_signal_arrives_at_what_is_tethered(ends_with_parent):
    _parent, processes = ends_with_parent
    processes[0].terminate()
    assert gone(processes)


def test_a_parent_that_was_gone_before_starts_nothing():
    nobody = 2**22 + 1
    command = [*WAYS["by the kernel"], str(nobody), "SIGKILL", "", "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, "")
