"""The population and what is measured on it, small: every page, its queries, and what they read."""

from collections import Counter

import pytest
from django.db import connection
from django.utils import timezone

from runs.models import Run, RunEvent
from tests.benchmarks.admin_pages import Page, measure, table
from tests.benchmarks.population import FAILED, populate

RUNS = 1_000
# What grows with the runs, and the indexes that have only what is active or unknown.
GROWING = {"runs_run", "runs_runevent", "runs_session", "runs_toolcall", "runs_cancellation"}
SMALL = {"run_of_worker", "run_active", "call_of_unknown_effect", "cancellation_unsettled"}


def plan_of(query):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query}")
        return [row[3] for row in cursor.fetchall()]


@pytest.mark.django_db
def test_line_46_and_c37_pages_stay_small_and_read_no_whole_table():
    populate(RUNS, RUNS * 10, now=timezone.now())
    statuses = Counter(Run.objects.values_list("status", flat=True))
    assert RunEvent.objects.count() == RUNS * 10
    assert 0 < statuses["failed"] <= RUNS * FAILED / 1000
    assert set(statuses) == {
        "queued",
        "running",
        "waiting",
        "completed",
        "failed",
        "cancelled",
        "interrupted",
    }

    pages = measure(choices=1, with_memory=False)

    told = table(pages)
    assert all(page.status == 200 for page in pages), told
    assert all(len(page.queries) < 50 for page in pages), told
    assert all(page.size < 2_000_000 for page in pages), told
    for page in pages:
        steps = [step for query in page.queries if query.startswith("SELECT") for step in plan_of(query)]
        tables = GROWING if page.name.startswith("dashboard") else {"runs_runevent"}
        assert [step for step in steps if reads_whole(step, tables)] == [], page.name


def reads_whole(step, tables):
    """Whether a step of a plan goes through a table; an index of a few of its rows is no such thing."""
    words = step.split()
    return words[0] == "SCAN" and words[1] in tables and not SMALL.intersection(words)


def test_the_table_has_a_line_for_each_page():
    lines = table([Page("one", "/"), Page("another", "/")]).splitlines()
    assert [line.split()[0] for line in lines] == ["page", "one", "another"]
