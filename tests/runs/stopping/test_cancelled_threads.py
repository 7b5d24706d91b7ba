"""A cancelled run starts no further function, and what does not end is given up on."""

import random
import threading
import time
from concurrent.futures import CancelledError, Future, wait
from queue import Queue

import pytest

from runs.stopping.cancel_token import CancelToken
from runs.stopping.registry import ActivityCount
from tests.runs.stopping.threads import LIMIT, hold, most_at_work, submit


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
    wait([queued], LIMIT)
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
    assert most_at_work(executor) == 2


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


def test_the_end_of_each_straggler_is_told_once(executor, gate):
    token = CancelToken()
    second_gate = threading.Event()
    first, second = hold(executor, token, gate), hold(executor, token, second_gate)
    told = Queue()
    token.activity.give_up(lambda: told.put(token.activity.stragglers()))
    gate.set()
    first.result(LIMIT)
    assert told.get(timeout=LIMIT) == ActivityCount(threads=1)
    second_gate.set()
    second.result(LIMIT)
    assert told.get(timeout=LIMIT) == ActivityCount()
    assert told.empty()


def test_giving_up_on_nothing_tells_at_once():
    told = []
    assert CancelToken().activity.give_up(lambda: told.append(True)) == ActivityCount()
    assert told == [True]
