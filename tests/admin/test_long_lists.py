"""Lists of tables of any size: what bounds them, and that a page says so where it matters."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from runs import operators
from runs.admin.lists import filters, paging, search
from runs.models import Cancellation, Run, Session
from runs.states import Effect, RunStatus
from tests.admin.rows import a_call, a_run, a_worker, running_run, session_of
from tests.admin.test_pages import at, runs_listed, words_of

LOOKED_THROUGH = "it was looked for among the latest"


@pytest.fixture
def runs(alice):
    """Six runs, the newest first, a minute apart; each has ten tokens more than the one before it."""
    found = [a_run(alice, RunStatus.COMPLETED) for _ in range(6)]
    for place, run in enumerate(found):
        when = timezone.now() - timedelta(minutes=place)
        at(run, created_at=when, input_tokens=10 * place, output_tokens=0)
    return found


def list_words(browser, name="run", query=""):
    return words_of(browser.get(f"{reverse(f'admin:runs_{name}_changelist')}?{query}"))


def test_pages_show_only_rows_that_are_counted(console, runs, monkeypatch):
    monkeypatch.setattr(paging, "COUNTED", 4)
    monkeypatch.setattr("runs.admin.pages.runs.RunAdmin.list_per_page", 3)
    assert runs_listed(console, p=1) + runs_listed(console, p=2) == runs[:4]
    assert "at least 4 runs" in list_words(console)
    monkeypatch.setattr(paging, "COUNTED", 6)
    assert "at least" not in list_words(console)


def test_an_order_without_an_index_sorts_only_the_latest_rows(console, runs, monkeypatch):
    by_tokens = {"o": "-5"}
    assert runs_listed(console, **by_tokens) == runs[::-1]
    monkeypatch.setattr(paging, "COUNTED", 4)
    assert runs_listed(console, **by_tokens) == [runs[4], runs[3], runs[2], runs[1]]
    told = "Only the latest 4 are put in this order"
    assert told in list_words(console, query="o=-5")
    assert told not in list_words(console, query="o=3"), "for the age there is an index"
    assert runs_listed(console, o="3") == runs[:1:-1], "the oldest of all"


def test_a_condition_without_an_index_is_checked_for_the_latest_rows(console, runs, monkeypatch):
    for run in runs:
        at(run, agent="rare")
    monkeypatch.setattr(paging, "LOOKED_THROUGH", 3)
    monkeypatch.setattr(
        filters.Tokens, "conditions", {"50": ("50", lambda _: filters.Q(input_tokens__gte=20))}
    )
    assert runs_listed(console, tokens="50") == runs[2:4]
    assert runs_listed(console, agent="rare") == runs[:4]
    assert LOOKED_THROUGH in list_words(console, query="agent=rare")
    assert LOOKED_THROUGH not in list_words(console, query="status__exact=completed")
    monkeypatch.setattr(paging, "LOOKED_THROUGH", 6)
    assert LOOKED_THROUGH not in list_words(console, query="agent=rare")


def test_older_rows_are_reached_by_their_day_and_other_filters(console, alice, runs, monkeypatch):
    monkeypatch.setattr(paging, "LOOKED_THROUGH", 2)
    old = a_run(alice, RunStatus.FAILED)
    long_ago = timezone.now() - timedelta(days=40)
    at(old, created_at=long_ago, agent="rare")
    assert runs_listed(console, agent="rare") == []
    assert runs_listed(console, agent="rare", until=timezone.localdate(long_ago)) == [old]
    assert runs_listed(console, agent="rare", status__exact="failed") == [old]
    day_before = timezone.localdate(long_ago) - timedelta(days=1)
    assert runs_listed(console, until=day_before) == []


@pytest.mark.parametrize("day", ["yesterday", "2026-02-30", "9999-12-31", "0001-01-01", "2026-1", "\0"])
@pytest.mark.parametrize("name", ["run", "session", "cancellation", "auditentry"])
def test_an_invalid_day_finds_nothing_and_breaks_nothing(console, runs, name, day):
    answer = console.get(reverse(f"admin:runs_{name}_changelist"), {"until": day})
    assert answer.status_code == 200


def test_a_search_is_bounded_and_says_so(console, alice, bob, monkeypatch):
    mine = [a_run(alice, text=f"Trip number {number}") for number in range(3)]
    his = a_run(bob, text="Something about alice")
    assert set(runs_listed(console, q="trip")) == set(mine)
    assert set(runs_listed(console, q="alice")) == {*mine, his}
    assert LOOKED_THROUGH not in list_words(console, query="q=alice")
    monkeypatch.setattr(search, "SESSIONS", 1)
    assert runs_listed(console, q="trip") == mine[2:]
    assert LOOKED_THROUGH in list_words(console, query="q=trip")
    assert LOOKED_THROUGH in list_words(console, "session", "q=trip")


def test_titles_are_searched_in_the_latest_sessions(console, alice, bob, monkeypatch):
    first = a_run(alice, text="A needle")
    second = a_run(bob, text="Hay")
    long_ago = timezone.now() - timedelta(days=1)
    Session.objects.filter(id=session_of(first).id).update(updated_at=long_ago)
    assert runs_listed(console, q="needle") == [first]
    monkeypatch.setattr(paging, "LOOKED_THROUGH", 0)
    assert runs_listed(console, q="needle") == []
    assert runs_listed(console, q="hay") == [second]
    assert runs_listed(console, q="alice") == [first], "to owners an index leads"


def test_the_name_of_one_account_is_not_lost_among_others_like_it(console, django_user_model, monkeypatch):
    monkeypatch.setattr(search, "OWNERS", 1)
    longer, called = (django_user_model.objects.create_user(name) for name in ("annabel", "anna"))
    a_run(longer)
    run = a_run(called)
    assert runs_listed(console, q="anna") == [run]


def test_a_pending_cancel_is_found_however_long_ago_it_was_accepted(console, olivia, alice, monkeypatch):

    for _ in range(3):
        operators.cancel(olivia, running_run(alice, a_worker()).id, "because")
    oldest = Cancellation.objects.order_by("accepted_at").first()
    Cancellation.objects.exclude(id=oldest.id).update(settled_at=timezone.now(), outcome="timed_out")
    monkeypatch.setattr(paging, "LOOKED_THROUGH", 0)
    assert "1 cancellation" in list_words(console, "cancellation", "outcome=pending")
    assert "1 cancellation" in list_words(console, "cancellation", "outcome=timed_out")


def test_runs_of_unknown_effect_are_those_of_the_latest_calls(console, alice, monkeypatch):
    found = [running_run(alice, None) for _ in range(3)]
    for run in found:
        a_call(run, effect=Effect.UNKNOWN)
    monkeypatch.setattr("runs.admin.lists.attention.CALLS", 2)
    assert set(runs_listed(console, attention="effect_unknown")) == {str(run.id) for run in found[1:]}


def test_the_list_says_when_it_does_not_show_all_matching_rows(console, alice, bob, monkeypatch):
    for _ in range(2):
        a_call(running_run(alice, a_worker()), effect=Effect.UNKNOWN)
    a_run(bob)
    asked = [
        (("run", "owner=alice"), "Only runs of the latest 1 sessions of this owner are shown"),
        (("run", "attention=effect_unknown"), "Only runs of the latest 1 tool calls of unknown effect are"),
        (("session", "status=running"), "Only sessions of the latest 1 such runs are shown."),
    ]
    for (name, query), told in asked:
        assert "Only" not in list_words(console, name, query), told
    for place in ("filters._SESSIONS", "attention.CALLS", "paging.COUNTED"):
        monkeypatch.setattr(f"runs.admin.lists.{place}", 1)
    for (name, query), told in asked:
        assert told in list_words(console, name, query)
    assert "Only runs" not in list_words(console, query="owner=bob")


def test_no_query_string_asks_for_the_words_of_others(staff, alice):
    a_run(alice, text="a secret")
    browser = staff("view_run", "view_session")
    for query in ("input__contains=secret", "session__title__contains=secret", "input=x", "pk__gt=0"):
        answer = browser.get(f"{reverse('admin:runs_run_changelist')}?{query}")
        assert (answer.status_code, answer.url.split("?")[1]) == (302, "e=1"), query
    answer = browser.get(f"{reverse('admin:runs_session_changelist')}?title__contains=secret")
    assert answer.status_code == 302


def test_an_empty_list_says_why(console, alice):
    assert "There are no runs yet." in list_words(console)
    a_run(alice)
    assert "Nothing fits. Show all runs" in list_words(console, query="owner=nobody")
    assert "Nothing fits" not in list_words(console)
    assert Run.objects.count() == 1
