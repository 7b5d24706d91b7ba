"""How long a worker may be silent."""

import math
from datetime import timedelta

import pytest

from runs.lifecycle.liveness import MISSED_BEATS, Watch


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def beat(settings):
    return settings.RUNS_HEARTBEAT


@pytest.fixture
def watch(clock, beat):
    """One that has beaten for a while."""
    watch = Watch(clock)
    beat_for(watch, clock, 10, beat)
    return watch


def beat_for(watch, clock, times, apart):
    for _ in range(times):
        clock.now += apart
        watch.beat()


def allowed(watch, beat):
    """How many heartbeats of silence are allowed."""
    silences = range(100)
    return max((n for n in silences if watch.allows(timedelta(seconds=n * beat))), default=-math.inf)


def test_whoever_has_just_come_knows_of_no_silence(clock, beat):
    watch = Watch(clock)
    for _ in range(MISSED_BEATS):
        assert watch.allows(timedelta(days=1))
        beat_for(watch, clock, 1, beat)

    assert allowed(watch, beat) == MISSED_BEATS


def test_a_heartbeat_that_comes_late_is_no_outage(watch, clock, beat):
    beat_for(watch, clock, 10, beat * 1.9)
    assert allowed(watch, beat) == MISSED_BEATS


def test_an_outage_does_not_count_until_all_had_their_time_again(watch, clock, beat):
    clock.now += beat * 10
    assert allowed(watch, beat) == MISSED_BEATS + 10, "a sweep may come before the first heartbeat"
    watch.beat()
    for _ in range(MISSED_BEATS):
        assert allowed(watch, beat) == MISSED_BEATS + 10
        beat_for(watch, clock, 1, beat)

    assert allowed(watch, beat) == MISSED_BEATS


def test_one_outage_after_another_delays_and_does_not_hide_a_death(watch, clock, beat):
    """Between them each worker has had its time."""
    silent_for = 0
    while watch.allows(timedelta(seconds=silent_for * beat)):
        assert silent_for < 60
        beat_for(watch, clock, 1, beat * 3)
        beat_for(watch, clock, 1, beat)
        silent_for += 4

    assert silent_for >= MISSED_BEATS * (3 + 1)
