"""The executor runs so many functions at a time, for the runs they belong to, and holds on to nothing."""

import gc
import threading
import weakref

import pytest

from runs.stopping.cancel_token import CancelToken, cancel_token
from runs.stopping.executor import TrackingExecutor
from runs.stopping.registry import ActivityCount
from tests.runs.stopping.threads import LIMIT, hold, most_at_work, submit


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


def test_no_more_functions_work_at_a_time_than_the_bound_allows(executor):
    assert most_at_work(executor) == 2
    assert len({t for t in threading.enumerate() if t.name.startswith("run-")}) >= 2


def test_tools_do_not_hold_up_what_belongs_to_no_run(executor, gate):
    for _ in range(2):
        hold(executor, CancelToken(), gate)
    assert executor.submit(lambda: "looked up").result(LIMIT) == "looked up"


def test_idle_threads_hold_on_to_nothing(executor):
    class Result:
        pass

    gone, forgotten = threading.Event(), threading.Event()
    gc.disable()  # nothing here may need it
    try:
        token = CancelToken()
        result = submit(executor, token, Result).result(LIMIT)
        seen = weakref.ref(result, lambda _: gone.set()), weakref.ref(token, lambda _: forgotten.set())
        del result, token
        assert submit(executor, CancelToken(), lambda: None).result(LIMIT) is None
        assert gone.wait(LIMIT)
        assert forgotten.wait(LIMIT)
    finally:
        gc.enable()
    assert [reference() for reference in seen] == [None, None]


def test_an_exception_makes_no_cycle_with_its_future(executor):
    class Failure(Exception):
        pass

    def fail():
        raise Failure

    gone = threading.Event()
    gc.collect()
    gc.disable()
    try:
        future = executor.submit(fail)
        with pytest.raises(Failure):
            future.result(LIMIT)
        seen = weakref.ref(future, lambda _: gone.set())
        del future
        assert gone.wait(LIMIT)
    finally:
        gc.enable()
    assert seen() is None


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
