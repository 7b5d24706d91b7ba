"""Whatever a process has bound to itself ends with it, however it ends."""

import subprocess
import sys

import psutil
import pytest

from chat.cluster import end_with_parent
from tests import ROOT
from tests.polling import PATIENT, until

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
            until(lambda: any(one.name() == "sleep" for one in (child, *child.children())), "sleep")
            yield parent, [child, *child.children()]
        finally:
            parent.kill()


def wait_for_the_end_of(processes):
    """What its parent has not collected has ended all the same."""
    until(lambda: not any(map(works, processes)), "the end of all processes")


def works(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_kill_9_of_the_parent_leaves_nothing(ends_with_parent):
    parent, processes = ends_with_parent
    parent.kill()
    wait_for_the_end_of(processes)


def test_a_signal_arrives_at_what_is_tethered(ends_with_parent):
    _parent, processes = ends_with_parent
    processes[0].terminate()
    wait_for_the_end_of(processes)


def test_a_parent_that_was_gone_before_starts_nothing():
    nobody = 2**22 + 1
    command = [*WAYS["by the kernel"], str(nobody), "SIGKILL", "", "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT, check=False)
    assert (done.returncode, done.stdout) == (0, "")
