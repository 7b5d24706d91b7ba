"""The cancel token is cancelled once, and tells whoever waits for it or has left a callback."""

import threading

import pytest

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token
from tests.runs.stopping.threads import LIMIT


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
