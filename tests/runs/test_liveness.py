"""Whose silence means death."""

import pytest

from runs.liveness import MISSED_BEATS, Watch


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def beat_for(watch, clock, beats, apart):
    for _ in range(beats):
        clock.now += apart
        watch.saw()


def test_whoever_has_just_come_believes_silence(clock):
    assert Watch(clock).believes_silence


@pytest.mark.parametrize("asked_first", [True, False], ids=["a sweep is first", "a heartbeat is first"])
def test_c34_after_an_outage_the_others_have_their_time_again(clock, settings, asked_first):
    watch = Watch(clock)
    beat_for(watch, clock, 10, settings.RUNS_HEARTBEAT)
    assert watch.believes_silence

    clock.now += settings.RUNS_HEARTBEAT * 10
    if not asked_first:
        watch.saw()
    for _ in range(MISSED_BEATS + 1):
        assert not watch.believes_silence
        beat_for(watch, clock, 1, settings.RUNS_HEARTBEAT)

    assert watch.believes_silence


def test_a_heartbeat_that_comes_late_is_no_outage(clock, settings):
    watch = Watch(clock)
    beat_for(watch, clock, 10, settings.RUNS_HEARTBEAT * 1.9)
    assert watch.believes_silence
