"""The figures of days and cancels: each is what a query over the stored runs gives."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runs.admin.dashboard import queries
from runs.foundation.database import in_thread
from runs.lifecycle import predicates
from runs.models import Cancellation, Run, Session, ToolCall, Worker
from runs.recovery import deletion

pytestmark = pytest.mark.django_db(transaction=True)


def add(session, finished_at, status="completed", **fields):
    """A run that ended then, or is in this active status."""
    session.last_queue_place += 1
    if status != "queued":
        fields["position"] = session.last_queue_place
    if status == "failed":
        fields["error_code"] = "provider"
    return Run.objects.create(
        session=session,
        agent=session.agent,
        queue_place=session.last_queue_place,
        status=status,
        message_id=f"m{session.last_queue_place}",
        finished_at=finished_at,
        **fields,
    )


def rows(*days):
    return [
        (str(total.day), total.agent, total.status, total.runs, total.input_tokens, total.output_tokens)
        for total in queries.by_day(days)
    ]


def test_a_days_figures_are_sums_over_the_runs_that_ended_on_it(session, bob):
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    other = Session.objects.create(owner=bob, agent="support")
    add(session, noon, input_tokens=10, output_tokens=3)
    add(session, noon, input_tokens=5)
    add(session, noon, "failed")
    add(session, None, "waiting", input_tokens=99)
    add(other, noon, "cancelled", input_tokens=1, output_tokens=1)
    add(other, noon + timedelta(days=1), "interrupted", output_tokens=7)

    assert rows(date(2026, 5, 3), date(2026, 5, 4), date(2026, 5, 5)) == [
        ("2026-05-04", "assistant", "completed", 2, 15, 3),
        ("2026-05-04", "assistant", "failed", 1, 0, 0),
        ("2026-05-04", "support", "cancelled", 1, 1, 1),
        ("2026-05-05", "support", "interrupted", 1, 0, 7),
    ]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", date(2026, 3, 29), 24),
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("Asia/Kathmandu", date(2026, 7, 1), 24),  # its offset has minutes
        ("Africa/Cairo", date(2026, 4, 24), 23),  # its midnight does not exist
    ],
)
def test_days_are_those_of_the_time_zone_also_when_the_clock_changes(settings, session, zone, day, hours):
    settings.TIME_ZONE = zone
    begin, end = queries.bounds(day)
    for moment in (begin - timedelta(microseconds=1), begin, end - timedelta(microseconds=1), end):
        add(session, moment.astimezone(UTC))

    assert end.astimezone(UTC) - begin.astimezone(UTC) == timedelta(hours=hours)
    assert rows(day) == [(str(day), "assistant", "completed", 2, 0, 0)]
    local = [run.finished_at.astimezone(ZoneInfo(zone)).date() for run in Run.objects.order_by("queue_place")]
    assert local == [day - timedelta(days=1), day, day, day + timedelta(days=1)]


async def test_deleted_sessions_stay_in_the_figures(engine, alice):
    def populate():
        session = Session.objects.create(owner=alice, agent="assistant")
        at = timezone.now() - timedelta(days=3)
        for status in ("completed", "completed", "failed"):
            add(session, at, status, input_tokens=4, output_tokens=2)
        kept = Session.objects.create(owner=alice, agent="assistant")
        add(kept, at, input_tokens=1)
        Session.objects.filter(id=session.id).update(last_position=3, updated_at=at)
        return queries.by_day(queries.latest_days(5)), at

    before, at = await in_thread(populate)
    assert await deletion.delete_unused(at + timedelta(hours=1)) == 1
    cache.clear()

    assert await in_thread(queries.by_day, queries.latest_days(5)) == before
    assert sum(total.runs for total in before) == 4


@pytest.mark.sqlite("reads how SQLite would go about it")
def test_thirty_days_are_one_statement_over_an_index(session):
    add(session, timezone.now() - timedelta(days=2))
    with CaptureQueriesContext(connection) as captured:
        queries.by_day(queries.latest_days(30))
    [query] = captured.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        plan = [row[3] for row in cursor.fetchall()]
    assert sum("COVERING INDEX run_figures" in step for step in plan) == 30
    assert not [step for step in plan if step.startswith("SCAN")]


def test_days_that_are_over_are_read_once_a_minute_and_today_each_time(session):
    today, yesterday = timezone.now(), timezone.now() - timedelta(days=1)
    days = queries.latest_days(2)
    add(session, today)
    add(session, yesterday)
    assert [total.runs for total in queries.by_day(days)] == [1, 1]
    add(session, today)
    add(session, yesterday)
    assert [total.runs for total in queries.by_day(days)] == [1, 2]
    cache.clear()
    assert [total.runs for total in queries.by_day(days)] == [2, 2]


def cancel(run, seconds, accepted_at=None):
    accepted_at = accepted_at or timezone.now() - timedelta(hours=1)
    settled = {} if seconds is None else {"settled_at": accepted_at + timedelta(seconds=seconds)}
    return Cancellation.objects.create(
        session=run.session,
        run=run,
        source="user",
        accepted_at=accepted_at,
        outcome=None if seconds is None else "cancelled",
        **settled,
    )


def test_cancel_latency_is_the_time_from_acceptance_to_settling(session):
    run = add(session, timezone.now(), "cancelled")
    for seconds in (0.05, 0.1, 0.3, 2, 40, None):
        cancel(run, seconds)
    cancel(run, 7, timezone.now() - timedelta(days=40))

    latency = queries.cancel_latency(timezone.now() - timedelta(days=30), (0.1, 1, 10))

    assert latency.counts == (2, 1, 1, 1)
    assert (latency.median, latency.most, latency.longest, latency.total) == (0.3, 40, 40, 5)


def test_without_a_cancel_there_is_no_latency(db):
    latency = queries.cancel_latency(timezone.now(), (1,))
    assert (latency.counts, latency.median, latency.most, latency.longest) == ((0, 0), None, None, None)


class TestAttention:
    """What needs to be looked at, and what does not."""

    @pytest.fixture
    def worker(self, db):
        return Worker.objects.create(host="a", boot="b", pid=1, pid_started="1", version="1")

    @pytest.fixture
    def silent(self, db):
        old = timezone.now() - timedelta(minutes=5)
        return Worker.objects.create(
            host="b", boot="b", pid=2, pid_started="1", version="1", heartbeat_at=old
        )

    def test_runs_are_stuck_without_a_beating_worker_or_without_any_event(self, alice, worker, silent):
        def run(**fields):
            session = Session.objects.create(owner=alice, agent="assistant")
            return add(session, None, "running", **fields)

        run(worker=worker)
        long_ago = timezone.now() - timedelta(minutes=10)
        stuck = [run(worker=silent), run(), run(worker=worker, last_event_at=long_ago)]
        add(Session.objects.create(owner=alice, agent="a"), None, "waiting", last_event_at=long_ago)

        assert set(predicates.stuck_runs()) == set(stuck)
        assert list(predicates.dead_workers()) == [silent]
        assert queries.active_by_worker() == {worker.id: 2, silent.id: 1, None: 1}

    def test_cancels_are_overdue_when_their_run_runs_on(self, alice, worker):
        def run(seconds):
            session = Session.objects.create(owner=alice, agent="assistant")
            at = timezone.now() - timedelta(seconds=seconds)
            return add(session, None, "running", worker=worker, cancel_requested_at=at)

        _, late = run(5), run(60)
        assert list(predicates.runs_with_overdue_cancel()) == [late]

    def test_unknown_effects_are_shown_for_a_day(self, session):
        for number, (hours, effect) in enumerate([(1, "unknown"), (30, "unknown"), (1, "done"), (1, None)]):
            at = timezone.now() - timedelta(hours=hours)
            run = add(session, at)
            ToolCall.objects.create(run=run, call_id=str(number), name="mark", effect=effect, started_at=at)

        assert [call.call_id for call in predicates.unknown_effects()] == ["0"]

    def test_a_queue_is_long_from_five_on(self, alice):
        for length in (4, 5):
            session = Session.objects.create(owner=alice, agent="assistant", title=str(length))
            for _ in range(length):
                add(session, None, "queued")

        assert predicates.long_queues() == ([session.id], False)

    def test_the_turns_read_of_queues_are_bounded(self, session, monkeypatch):
        for _ in range(6):
            add(session, None, "queued")
        monkeypatch.setattr(predicates, "QUEUED_LOOKED_AT", 5)
        with CaptureQueriesContext(connection) as captured:
            assert predicates.long_queues() == ([session.id], True)
        assert "LIMIT 6" in captured[0]["sql"]

    def test_a_turn_is_untaken_when_nothing_was_ahead_of_it_for_four_heartbeats(self, alice):
        def queue(*statuses, minutes=10, **fields):
            session = Session.objects.create(owner=alice, agent="assistant")
            ended = {"interrupted": timezone.now()}
            runs = [add(session, ended.get(status), status, **fields) for status in statuses]
            Session.objects.filter(id=session.id).update(
                updated_at=timezone.now() - timedelta(minutes=minutes)
            )
            return runs

        alone = queue("queued", "queued")
        answered, _ = queue("waiting", "queued", answers={"q": "yes"})
        for ahead in ("running", "waiting"):
            queue(ahead, "queued")
        queue("queued", minutes=0)
        (_, held) = interrupted = queue("interrupted", "queued")

        assert set(predicates.unclaimed_runs()) == {*alone, answered}
        assert predicates.ahead_of_queues([held.session_id]) == {held.session_id: interrupted[0]}
        Run.objects.filter(id=interrupted[0].id).update(resolution="dismissed")
        assert held in set(predicates.unclaimed_runs())

    def test_an_interrupted_turn_is_shown_for_a_day_unless_it_is_decided(self, session):
        now = timezone.now()
        fresh = add(session, now, "interrupted")
        add(session, now, "interrupted", resolution="dismissed")
        add(session, now - timedelta(hours=30), "interrupted")

        assert list(predicates.undecided_runs()) == [fresh]
