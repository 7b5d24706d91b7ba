"""How long a worker may be silent."""

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


@pytest.fixture
def beat(settings):
    return settings.RUNS_HEARTBEAT


@pytest.fixture
def watch(clock, beat):
    """One to which the database has answered for a while."""
    watch = Watch(clock)
    be_answered(watch, clock, 10, beat)
    return watch


def be_answered(watch, clock, times, apart):
    for _ in range(times):
        clock.now += apart
        watch.saw()


def patience(watch):
    return watch.patience().total_seconds()


def test_whoever_has_just_come_is_as_patient_as_all(clock, beat):
    assert patience(Watch(clock)) == MISSED_BEATS * beat


def test_a_heartbeat_that_comes_late_is_no_outage(watch, clock, beat):
    be_answered(watch, clock, 10, beat * 1.9)
    assert patience(watch) == MISSED_BEATS * beat


@pytest.mark.parametrize("asked_first", [True, False], ids=["a sweep is first", "a heartbeat is first"])
def test_c34_an_outage_does_not_count_until_all_had_their_time_again(watch, clock, beat, asked_first):
    clock.now += beat * 10
    if not asked_first:
        watch.saw()
    for _ in range(MISSED_BEATS):
        assert patience(watch) == (MISSED_BEATS + 10) * beat
        be_answered(watch, clock, 1, beat)

    assert patience(watch) == MISSED_BEATS * beat


def test_c34_one_outage_after_another_delays_and_does_not_hide_a_death(watch, clock, beat):
    """Between them each worker has had its time."""
    silent_for = 0.0
    while silent_for <= patience(watch):
        assert silent_for < 60 * beat
        clock.now += beat * 3
        watch.saw()
        be_answered(watch, clock, 1, beat)
        silent_for += beat * 4

    assert silent_for >= MISSED_BEATS * (3 + 1) * beat
