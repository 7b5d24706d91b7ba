"""The population and what is measured on it, small: every page, its queries, and what they read."""

import re
from collections import Counter
from contextlib import contextmanager

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from runs.admin.base import ConsoleAdmin
from runs.admin.lists import attention, filters, paging, search
from runs.models import Run, RunEvent
from runs.states import RunStatus
from tests.benchmarks.admin_pages import Page, addresses, look_at, table
from tests.benchmarks.population import BENCHMARK, FAILED, populate

RUNS = 1_000
OURS = ("/admin/runs/", "/admin/dashboard/")
# What grows with the runs, and the indexes that have only what is active or unknown.
GROWING = {"runs_run", "runs_runevent", "runs_session", "runs_toolcall", "runs_cancellation"}
SMALL = {"run_of_worker", "run_active", "call_of_unknown_effect", "cancellation_unsettled"}


def plan_of(query):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query}")
        return [row[3] for row in cursor.fetchall()]


@contextmanager
def bounds_of_a_test():
    """The bounds of lists, so small that a thousand runs are many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ConsoleAdmin, "list_per_page", 5)
        for place, bound in (
            (paging, "COUNTED"),
            (paging, "LOOKED_THROUGH"),
            (search, "SESSIONS"),
            (filters, "_SESSIONS"),
            (attention, "CALLS"),
        ):
            patched.setattr(place, bound, 30)
        yield


@contextmanager
def filled(runs):
    """A population that is gone again at the end; the browser of somebody who may see all of it."""
    with transaction.atomic():
        populate(runs, runs * 10, now=timezone.now())
        client = Client()
        client.force_login(get_user_model().objects.get(username=BENCHMARK))
        yield client
        transaction.set_rollback(True)


@contextmanager
def steps_counted():
    """Steps of SQLite's machine, as a list with a number: work that does not depend on what else goes on."""
    counted = [0]

    def count():
        counted[0] += 100
        return 0

    connection.connection.set_progress_handler(count, 100)
    yield counted
    connection.connection.set_progress_handler(None, 0)


def look_at_all(client):
    """``{page: (its Page, steps)}``"""
    found = {}
    for page in addresses(client):
        if page.name.endswith("upwards") or not page.address.startswith(OURS):
            continue
        with steps_counted() as steps:
            look_at(client, page)
        found[re.sub("[0-9a-f-]{12,}", "an id", page.name)] = page, steps[0]
    return found


@pytest.mark.django_db
def test_pages_stay_small_and_do_no_more_work_on_a_longer_table():
    with bounds_of_a_test():
        with filled(RUNS) as client:
            statuses = Counter(Run.objects.values_list("status", flat=True))
            assert RunEvent.objects.count() == RUNS * 10
            assert 0 < statuses["failed"] <= RUNS * FAILED / 1000
            assert set(statuses) == set(RunStatus)
            few = look_at_all(client)
            pages = [page for page, _ in few.values()]
            told = table(pages)
            assert len(pages) > 120
            assert all(page.status == 200 for page in pages), told
            assert all(len(page.queries) < 50 for page in pages), told
            assert all(page.size < 2_000_000 for page in pages), told
            for page in pages:
                tables = GROWING if page.name.startswith("dashboard") else {"runs_runevent"}
                steps = [
                    step for query in page.queries if query.startswith("SELECT") for step in plan_of(query)
                ]
                assert [step for step in steps if reads_whole(step, tables)] == [], page.name
        with filled(4 * RUNS) as client:
            many = look_at_all(client)
    assert set(few) == set(many)
    # What the dashboard counts is what ended in a month: that grows.
    more = {
        name: (few[name][1], steps)
        for name, (_, steps) in many.items()
        if not name.startswith("dashboard") and steps > few[name][1] * 1.5 + 2_000
    }
    assert more == {}


def reads_whole(step, tables):
    """Whether a step of a plan goes through a table; an index of a few of its rows is no such thing."""
    words = step.split()
    return words[0] == "SCAN" and words[1] in tables and not SMALL.intersection(words)


def test_the_table_has_a_line_for_each_page():
    lines = table([Page("one", "/"), Page("another", "/")]).splitlines()
    assert [line.split()[0] for line in lines] == ["page", "one", "another"]
