"""The lists show those first that need attention, and are filtered and searched at a bounded price."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from runs import operators
from runs.admin.lists import paging
from runs.models import Cancellation, Run, Session
from runs.states import RunStatus
from tests.admin.reading import at, runs_listed, words_of
from tests.admin.rows import a_call, a_run, a_worker, running_run, session_of, stuck_run


def test_runs_that_need_attention_come_first_then_the_newest(console, alice):
    now = timezone.now()
    older = a_run(alice, RunStatus.COMPLETED)
    newer = a_run(alice, RunStatus.COMPLETED)
    silent = stuck_run(alice, seconds=200)
    longest = stuck_run(alice, seconds=900)
    lost = running_run(alice, a_worker(heartbeat_at=now - timedelta(hours=1)))
    at(older, created_at=now - timedelta(hours=2))
    at(newer, created_at=now - timedelta(hours=1))
    assert runs_listed(console) == [str(longest.id), str(silent.id), str(lost.id), newer, older]
    by_age = runs_listed(console, o="3")
    assert by_age[:2] == [older, newer]
    assert runs_listed(console, o="-3") == by_age[::-1]


def test_a_turn_that_no_worker_takes_needs_attention_too(console, alice):
    untaken, fresh = a_run(alice), a_run(alice)
    for run in (untaken, fresh):
        a_run(alice, RunStatus.QUEUED, str(session_of(run).id))
    newest = a_run(alice, RunStatus.COMPLETED)
    Session.objects.filter(runs=untaken).update(updated_at=timezone.now() - timedelta(minutes=1))
    at(untaken, last_event_at=timezone.now() - timedelta(minutes=1))
    listed = runs_listed(console)
    assert listed[0] == untaken
    assert listed[2] == newest, "both turns of its queue come first"
    assert set(runs_listed(console, attention="untaken")) == set(listed[:2])
    assert words_of(console.get(reverse("admin:runs_run_changelist"))).count("queued not taken") == 2


def test_runs_that_need_attention_are_listed_once_over_all_pages(console, alice, monkeypatch):
    monkeypatch.setattr("runs.admin.pages.runs.RunAdmin.list_per_page", 3)
    hanging = [str(stuck_run(alice, seconds=1000 - n).id) for n in range(4)]
    others = [a_run(alice) for _ in range(4)]
    pages = [runs_listed(console, p=number) for number in (1, 2, 3)]
    assert [len(one) for one in pages] == [3, 3, 2]
    assert [*pages[0], pages[1][0]] == hanging
    assert sorted([*pages[1][1:], *pages[2]]) == sorted(others)


def test_the_list_is_filtered_by_all_it_shows(console, alice, bob):
    worker, other = a_worker(), a_worker()
    mine = stuck_run(alice, worker)
    a_call(mine, effect="unknown")
    at(mine, agent="writer", input_tokens=1500, cancel_requested_at=timezone.now() - timedelta(minutes=5))
    his = running_run(bob, other)
    done = a_run(bob, RunStatus.COMPLETED)
    at(done, created_at=timezone.now() - timedelta(days=9), finished_at=timezone.now() - timedelta(days=9))
    expected = {
        ("status__exact", "running"): {str(mine.id), str(his.id)},
        ("status__exact", "active"): {str(mine.id), str(his.id)},
        ("status__exact", "completed"): {done},
        ("owner", "alice"): {str(mine.id)},
        ("owner", "ali"): set(),
        ("session", str(his.session_id)): {str(his.id)},
        ("agent", "writer"): {str(mine.id)},
        ("worker", str(other.id)): {str(his.id)},
        ("worker", "none"): set(),
        ("age", "hour"): {str(mine.id), str(his.id)},
        ("age", "older"): {done},
        ("last_event", "minute"): {str(his.id)},
        ("last_event", "silent_minute"): {str(mine.id)},
        ("tokens", "1000"): {str(mine.id)},
        ("tokens", "unknown"): {str(his.id), done},
        ("attention", "stuck"): {str(mine.id)},
        ("attention", "cancel_overdue"): {str(mine.id)},
        ("attention", "effect_unknown"): {str(mine.id)},
        ("attention", "worker_lost"): set(),
        ("attention", "any"): {str(mine.id)},
    }
    assert {query: set(runs_listed(console, **dict([query]))) for query in expected} == expected


def test_runs_are_found_by_ids_owner_and_title(console, alice, bob):
    run = a_run(alice, text="Plans for Rome")
    a_run(bob, text="Something else")
    session = session_of(run)
    for term in (run, run[:8], str(session.id), str(session.id).replace("-", "")[:12], "alic", "for rome"):
        assert runs_listed(console, q=term) == [run], term
    assert runs_listed(console, q="nobody") == []


@pytest.mark.parametrize(
    "query",
    [
        "q=%00",
        "owner=%00",
        "agent=%00",
        "session=1",
        "worker=x",
        "status__exact=x",
        "p=0",
        "p=999",
        "o=99",
        "e=1",
    ],
)
@pytest.mark.parametrize("name", ["run", "session", "cancellation", "auditentry", "worker"])
def test_no_query_string_breaks_a_list(console, alice, name, query):
    a_run(alice)
    response = console.get(f"{reverse(f'admin:runs_{name}_changelist')}?{query}", follow=True)
    assert response.status_code == 200


@pytest.mark.parametrize("name", ["run", "session", "cancellation", "auditentry", "worker"])
def test_the_queries_of_a_list_do_not_grow_with_it(console, olivia, name):
    def fill(number):
        for index in range(number):
            owner = get_user_model().objects.create(username=f"user-{name}-{Run.objects.count()}-{index}")
            stuck_run(owner)
            operators.cancel(olivia, a_run(owner), "because")

    fill(2)
    url = reverse(f"admin:runs_{name}_changelist")
    console.get(url)  # what is read once for a process
    with CaptureQueriesContext(connection) as few:
        console.get(url)
    fill(5)
    with CaptureQueriesContext(connection) as many:
        console.get(url)
    assert len(many) == len(few) <= 15, [query["sql"][:150] for query in many]


def test_a_list_counts_no_further_than_its_bound(console, alice, monkeypatch):
    monkeypatch.setattr(paging, "COUNTED", 3)
    for _ in range(5):
        a_run(alice)
    response = console.get(reverse("admin:runs_run_changelist"))
    assert "at least 3 runs" in words_of(response)


def test_sessions_workers_cancellations_and_audit_entries_are_listed(console, alice, olivia):
    worker = a_worker(active_runs=3, stragglers=2, heartbeat_at=timezone.now() - timedelta(minutes=3))
    run = running_run(alice, a_worker())
    operators.cancel(olivia, run.id, "too slow")
    long_ago = timezone.now() - timedelta(seconds=125)
    Cancellation.objects.update(accepted_at=long_ago)
    sessions = words_of(console.get(reverse("admin:runs_session_changelist")))
    assert "hello alice assistant running chat" in sessions
    workers = words_of(console.get(reverse("admin:runs_worker_changelist")))
    assert f"{worker} silent 3 min" in workers
    assert "3 2 1.0.0" in workers
    cancellations = words_of(console.get(reverse("admin:runs_cancellation_changelist")))
    assert re.search(r"pending Operator olivia too slow 2 min \d+ s 2 min \d+ s so far", cancellations)
    Cancellation.objects.update(settled_at=long_ago + timedelta(seconds=2.5), outcome="cancelled")
    assert "2.5 s" in words_of(console.get(reverse("admin:runs_cancellation_changelist")))
    assert f"olivia cancel {run.id} too slow" in words_of(
        console.get(reverse("admin:runs_auditentry_changelist"))
    )
