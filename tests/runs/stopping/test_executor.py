"""The loop's default executor: bounds, cancel, stragglers, and leaving the process in time."""

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, Future

import pytest

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token, current
from runs.stopping.executor import TrackingExecutor
from runs.stopping.registry import ActivityCount
from runs.stopping.tracking import track_tasks
from tests import ROOT

LIMIT = 20  # seconds after which something that should happen at once is taken to be stuck


@pytest.fixture
def executor():
    executor = TrackingExecutor(max_workers=2, other_workers=2)
    yield executor
    executor.shutdown(cancel_futures=True)


@pytest.fixture
def gate():
    """Holds up the functions of a test, and lets them go at its end whatever happened."""
    gate = threading.Event()
    yield gate
    gate.set()


def submit(executor, token, function, *args):
    """Submit in the context of ``token``'s run."""
    before = current.set(token)
    try:
        return executor.submit(function, *args)
    finally:
        current.reset(before)


def hold(executor, token, gate):
    """Occupy a thread until the gate opens; returns once the function has started."""
    started = threading.Event()

    def block():
        started.set()
        gate.wait()
        return "late"

    future = submit(executor, token, block)
    assert started.wait(LIMIT)
    return future


def eventually(condition):
    """Wait for what another thread is just about to do."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_results_and_exceptions_come_back_like_from_any_executor(executor):
    assert executor.submit(pow, 2, 5).result(LIMIT) == 32
    assert executor.submit(int, "11", base=2).result(LIMIT) == 3
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 / 0).result(LIMIT)
    assert sorted(executor.map(abs, [-1, -2, -3])) == [1, 2, 3]


def test_a_thread_belongs_to_the_run_in_whose_context_it_was_submitted(executor, gate):
    token, other = CancelToken(), CancelToken()
    future = hold(executor, token, gate)
    assert token.activity.alive() == ActivityCount(threads=1)
    assert other.activity.alive() == ActivityCount()
    gate.set()
    assert future.result(LIMIT) == "late"
    assert token.activity.alive() == ActivityCount()


def test_a_function_finds_its_token_even_when_submitted_without_its_context(executor):
    token = CancelToken()
    assert submit(executor, token, cancel_token).result(LIMIT) is token
    assert submit(executor, token, cancel_token).result(LIMIT) is token
    # The same threads serve another run next, and none of the first is left in them.
    other = CancelToken()
    assert submit(executor, other, cancel_token).result(LIMIT) is other
    assert executor.submit(cancel_token).result(LIMIT) not in (token, other)


def test_no_more_functions_work_at_a_time_than_the_bound_allows(executor, gate):
    token = CancelToken()
    lock, at_work, most = threading.Lock(), 0, 0

    def work():
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.001)
        with lock:
            at_work -= 1

    futures = [submit(executor, token, work) for _ in range(100)]
    for future in futures:
        future.result(LIMIT)
    assert most == 2
    assert len({t for t in threading.enumerate() if t.name.startswith("run-")}) >= 2


def test_queued_work_can_be_cancelled_and_running_work_cannot(executor, gate):
    token = CancelToken()
    running = [hold(executor, token, gate) for _ in range(2)]
    queued = submit(executor, token, pytest.fail, "it started")
    assert token.activity.alive() == ActivityCount(threads=3)
    assert queued.cancel()
    assert not running[0].cancel()
    assert token.activity.alive() == ActivityCount(threads=2)


def test_queued_work_of_a_cancelled_run_never_starts(executor, gate):
    token = CancelToken()
    hold(executor, token, gate)
    hold(executor, CancelToken(), gate)
    started = []
    queued = [submit(executor, token, started.append, number) for number in range(10)]
    token.cancel()
    assert all(future.cancelled() for future in queued)
    assert token.activity.alive() == ActivityCount(threads=1)
    gate.set()
    assert executor.submit(lambda: None).result(LIMIT) is None
    assert submit(executor, CancelToken(), lambda: None).result(LIMIT) is None
    assert started == []


def test_a_thread_that_gets_to_it_between_the_cancel_and_the_taking_back_does_not_start_it(executor, gate):
    token = CancelToken()
    for _ in range(2):
        hold(executor, CancelToken(), gate)
    queued = submit(executor, token, pytest.fail, "it started")
    token._cancelled.set()  # the first half of cancel()
    gate.set()
    eventually(queued.done)
    assert queued.cancelled()


def test_a_cancelled_run_starts_nothing_new(executor):
    token = CancelToken()
    token.cancel()
    future = submit(executor, token, pytest.fail, "it started")
    assert future.cancelled()
    assert token.activity.alive() == ActivityCount()


def test_cancel_against_submission_and_start_leaves_nothing_undecided(executor):
    """Whatever the order: each function either ran or is cancelled, none starts after cancel() returned."""
    chance = random.Random(1)
    for _ in range(400):
        token = CancelToken()
        returned = threading.Event()
        started_late = []
        ran = []

        def work(number, returned=returned, started_late=started_late, ran=ran):
            if returned.is_set():
                started_late.append(number)
            ran.append(number)

        futures: list[Future] = []

        def feed(futures=futures, token=token, work=work):
            for number in range(8):
                futures.append(submit(executor, token, work, number))

        feeder = threading.Thread(target=feed)
        feeder.start()
        for _ in range(chance.randrange(60)):
            pass
        token.cancel()
        # A function that is already running may be between its start and its first line.
        running = token.activity.alive().threads
        returned.set()
        feeder.join(LIMIT)
        finished = []
        for number, future in enumerate(futures):
            try:
                future.result(LIMIT)
                finished.append(number)
            except CancelledError:
                pass
        assert sorted(ran) == finished
        assert len(started_late) <= running
        assert token.activity.alive() == ActivityCount()


def test_stragglers_do_not_take_the_places_of_others(executor, gate):
    hung = []
    for _ in range(5):  # more than twice the bound
        token = CancelToken()
        hung.append((token, hold(executor, token, gate), hold(executor, token, gate)))
        waiting = submit(executor, CancelToken(), lambda: "served")
        assert not waiting.done()
        token.cancel()
        assert token.activity.give_up() == ActivityCount(threads=2)
        assert waiting.result(LIMIT) == "served"
    for token, *_ in hung:
        assert token.activity.alive() == ActivityCount()
        assert token.activity.stragglers() == ActivityCount(threads=2)
    gate.set()
    for _, *futures in hung:
        assert [future.result(LIMIT) for future in futures] == ["late", "late"]
    # Their threads have left, so the bound holds as before.
    test_no_more_functions_work_at_a_time_than_the_bound_allows(executor, gate)


def test_giving_up_what_ends_at_that_moment_keeps_the_bound(executor):
    """Giving up races with the end of the function; places must neither be lost nor multiply."""
    for _ in range(500):
        token = CancelToken()
        futures = [submit(executor, token, time.sleep, 0) for _ in range(3)]
        token.activity.give_up()
        for future in futures:
            if not future.cancelled():
                future.result(LIMIT)
    gate = threading.Event()
    try:
        held = [hold(executor, CancelToken(), gate) for _ in range(2)]
        third = submit(executor, CancelToken(), lambda: "third")
        with pytest.raises(TimeoutError):
            third.result(0.05)
    finally:
        gate.set()
    assert third.result(LIMIT) == "third"
    assert [future.result(LIMIT) for future in held] == ["late", "late"]


def test_tools_do_not_hold_up_what_belongs_to_no_run(executor, gate):
    for _ in range(2):
        hold(executor, CancelToken(), gate)
    assert executor.submit(lambda: "looked up").result(LIMIT) == "looked up"


def test_the_end_of_the_last_straggler_is_told_once(executor, gate):
    token = CancelToken()
    second_gate = threading.Event()
    first, second = hold(executor, token, gate), hold(executor, token, second_gate)
    told = []
    idle = threading.Event()

    def on_idle():
        told.append(token.activity.stragglers())
        idle.set()

    token.activity.give_up(on_idle)
    gate.set()
    first.result(LIMIT)
    assert told == []
    second_gate.set()
    second.result(LIMIT)
    assert idle.wait(LIMIT)
    assert told == [ActivityCount()]


def test_giving_up_on_nothing_tells_at_once():
    told = []
    assert CancelToken().activity.give_up(lambda: told.append(True)) == ActivityCount()
    assert told == [True]


def test_idle_threads_hold_on_to_nothing(executor):
    class Result:
        pass

    token = CancelToken()
    result = submit(executor, token, Result).result(LIMIT)
    seen = weakref.ref(result)
    forgotten = weakref.ref(token)
    del result, token
    assert submit(executor, CancelToken(), lambda: None).result(LIMIT) is None
    gc.disable()  # nothing here may need it
    try:
        eventually(lambda: seen() is None and forgotten() is None)
    finally:
        gc.enable()


def test_an_exception_makes_no_cycle_with_its_future(executor):
    class Failure(Exception):
        pass

    def fail():
        raise Failure

    gc.collect()
    gc.disable()
    try:
        future = executor.submit(fail)
        with pytest.raises(Failure):
            future.result(LIMIT)
        seen = weakref.ref(future)
        del future
        eventually(lambda: seen() is None)
    finally:
        gc.enable()


def test_after_shutdown_nothing_is_taken_and_nobody_waits(gate):
    executor = TrackingExecutor(max_workers=1)
    token = CancelToken()
    running = hold(executor, token, gate)
    queued = submit(executor, token, lambda: "queued")
    executor.shutdown(wait=True)  # returns although a thread is held up
    with pytest.raises(RuntimeError, match="shutdown"):
        submit(executor, token, lambda: None)
    assert token.activity.alive() == ActivityCount(threads=2)
    gate.set()
    assert running.result(LIMIT) == "late"
    assert queued.result(LIMIT) == "queued"


def test_shutdown_cancels_what_is_queued_when_asked(gate):
    executor = TrackingExecutor(max_workers=1)
    token = CancelToken()
    hold(executor, token, gate)
    queued = submit(executor, token, pytest.fail, "it started")
    executor.shutdown(cancel_futures=True)
    assert queued.cancelled()
    assert token.activity.alive() == ActivityCount(threads=1)


# As the default executor of an event loop


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
    loop.call_later(0.01, gate.set)
    assert await token.activity.wait_until_idle(LIMIT)
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
        current.set(token)
        seconds = [chance.random() / 1000 for _ in range(4)]
        tasks = [asyncio.create_task(asyncio.to_thread(time.sleep, s)) for s in seconds[:2]]
        tasks += [asyncio.create_task(asyncio.sleep(s)) for s in seconds[2:]]
        current.set(None)
        assert await token.activity.wait_until_idle(LIMIT)
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
