"""The dashboard: who sees which parts, and that its numbers are those of the stored runs."""

from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runs.admin.dashboard import page, queries
from runs.lifecycle import predicates
from runs.models import DailyTotal, Run, Session, ToolCall, Worker
from tests.admin.test_dashboard_numbers import add, cancel

pytestmark = pytest.mark.django_db(transaction=True)

PARTS = {
    "view_run": {"outcomes", "tokens"},
    "view_cancellation": {"cancels"},
    "view_worker": set(),
    "view_toolcall": set(),
    "view_session": set(),
}


class Page(HTMLParser):
    """The ids of a page, its figures and pictures, and what the policy forbids."""

    def __init__(self, html):
        super().__init__()
        self.ids = set()
        self.inline = []
        self.figures = 0
        self.pictures = 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs.get("id")}
        self.figures += tag == "figure"
        self.pictures += tag == "svg" and attrs.get("role") == "img"
        if tag == "style" or "style" in attrs or any(name.startswith("on") for name in attrs):
            self.inline.append((tag, attrs))
        if tag == "script" and "src" not in attrs and attrs.get("type") != "application/json":
            self.inline.append((tag, attrs))


def shown(user):
    found = page.of(user)
    return {figure.key: figure for figure in found.figures}, {
        check.name: check.count for check in found.checks
    }


@pytest.mark.parametrize(
    "permissions",
    [(), ("view_run",), ("view_cancellation",), ("view_worker",), ("view_run", "view_worker"), tuple(PARTS)],
)
def test_parts_without_permission_are_absent(client, bob, permissions, session):
    add(session, timezone.now())
    cancel(add(session, timezone.now(), "cancelled"), 0.1)
    bob.is_staff = True
    bob.save()
    bob.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client.force_login(bob)
    expected = set().union(*(PARTS[permission] for permission in permissions))
    if {"view_run", "view_worker"} <= set(permissions):
        expected |= {"workers"}

    for address in ("/admin/", "/admin/dashboard/"):
        page = Page(client.get(address).content.decode())
        assert {
            part for part in ("outcomes", "tokens", "cancels", "workers") if f"{part}-title" in page.ids
        } == (expected)
        assert page.figures == len(expected)


@pytest.mark.parametrize("who", ["charlie", "alice"])
def test_only_staff_get_the_dashboard(client, alice, who):
    if who == "alice":
        client.force_login(alice)
    for address in ("/admin/", "/admin/dashboard/"):
        answer = client.get(address)
        assert (answer.status_code, answer.headers["Location"].split("?")[0]) == (302, "/admin/login/")


def test_each_picture_has_its_numbers_and_nothing_is_inline(client, olivia, session):
    at = timezone.now()
    add(session, at, input_tokens=3)
    cancel(add(session, at, "cancelled"), 0.1)
    worker = Worker.objects.create(host="a", boot="b", pid=1, pid_started="1", version="1")
    add(session, None, "running", worker=worker)
    client.force_login(olivia)

    answer = client.get("/admin/")
    page = Page(answer.content.decode())

    assert (page.figures, page.pictures, page.inline) == (4, 4, [])
    assert "no-store" in client.get("/admin/dashboard/").headers["Cache-Control"]


def test_the_numbers_of_each_picture_are_those_of_the_runs(olivia, alice, session):
    now = timezone.now()
    other = Session.objects.create(owner=alice, agent="support")
    add(session, now, input_tokens=10, output_tokens=1)
    add(session, now - timedelta(days=1), "failed", input_tokens=100)
    add(other, now - timedelta(days=1), "interrupted", output_tokens=1000)
    add(session, now - timedelta(days=31), input_tokens=7)
    day = timezone.localdate(now) - timedelta(days=1)
    DailyTotal.objects.create(day=day, agent="support", status="failed", runs=5, input_tokens=50)

    pictures, _ = shown(olivia)

    ended = Run.objects.filter(finished_at__gte=queries.bounds(queries.latest_days(30)[0])[0])
    in_picture = {one.name.lower(): sum(one.values) for one in pictures["outcomes"].chart.series}
    assert in_picture == {
        status: ended.filter(status=status).count() + (5 if status == "failed" else 0)
        for status in in_picture
    }
    rows = [[cell.text for cell in row[1:]] for row in pictures["outcomes"].rows]
    assert rows[:3] == [["1", "0", "0", "0", "1"], ["0", "6", "0", "1", "7"], ["0"] * 5]
    tokens = {one.name: sum(one.values) for one in pictures["tokens"].chart.series}
    assert tokens == {"support": 1050, "assistant": 111}
    assert [[cell.text for cell in row[1:]] for row in pictures["tokens"].rows] == [
        ["10", "1", "11"],
        ["50", "1,000", "1,050"],
        ["100", "0", "100"],
    ]


def test_workers_are_shown_with_what_they_execute_and_what_straggles(olivia, session):
    worker = Worker.objects.create(host="a", boot="b", pid=1, pid_started="1", version="1", stragglers=2)
    old = timezone.now() - timedelta(minutes=5)
    Worker.objects.create(host="b", boot="b", pid=2, pid_started="1", version="1", heartbeat_at=old)
    run = add(session, None, "running", worker=worker, cancel_requested_at=old)
    ended = add(session, timezone.now())
    ToolCall.objects.create(run=ended, call_id="1", name="x", effect="unknown", started_at=timezone.now())

    pictures, checks = shown(olivia)

    assert [[cell.text for cell in row] for row in pictures["workers"].rows] == [
        ["a:1", "1", "2", "works"],
        ["b:2", "0", "0", "does not beat"],
    ]
    assert checks == {
        "Stuck runs": 0,
        "Overdue cancels": 1,
        "Turns nobody takes": 0,
        "Dead workers": 1,
        "Interrupted turns": 0,
        "Unknown effects": 1,
        "Long queues": 0,
    }
    assert page.of(olivia).news == (
        "Needs attention: overdue cancels: 1, dead workers: 1, unknown effects: 1."
    )
    assert run.status == "running"


def test_each_link_leads_to_the_list_behind_its_figure(client, olivia, session):
    Worker.objects.create(host="a", boot="b", pid=1, pid_started="1", version="1")
    found = page.of(olivia)
    links = {check.name: check.url for check in found.checks}
    links |= {figure.title: figure.url for figure in found.figures}
    links |= {
        f"{figure.title}: {cell.text}": cell.url
        for figure in found.figures
        for row in (figure.head, *figure.rows)
        for cell in row
        if cell.url
    }
    client.force_login(olivia)
    # What the admin does not know how to filter by, it redirects from.
    assert {name: client.get(url).status_code for name, url in links.items()} == dict.fromkeys(links, 200)
    assert len(links) == 7 + 4 + 4 + 2


def test_as_many_runs_are_stuck_in_the_list_as_in_the_figure(client, olivia, alice):
    for _ in range(3):
        add(Session.objects.create(owner=alice, agent="assistant"), None, "running")
    client.force_login(olivia)
    check = next(check for check in page.of(olivia).checks if check.name == "Stuck runs")
    assert len(client.get(check.url).context["cl"].result_list) == check.count == 3


def queue_of(owner, length, **fields):
    """A session with so many turns in line, in which nothing has happened for a while."""
    session = Session.objects.create(owner=owner, agent="assistant")
    for _ in range(length):
        add(session, None, "queued", **fields)
    Session.objects.filter(id=session.id).update(updated_at=timezone.now() - timedelta(minutes=5))
    return session


def test_a_queue_that_no_worker_takes_is_shown_with_what_to_do_about_it(olivia, alice):
    def check():
        return next(check for check in page.of(olivia).checks if check.name == "Turns nobody takes")

    queue_of(alice, 2)
    none = "There is none that could: start one, or cancel what nobody should wait for."
    assert check().count == 2
    assert check().why.endswith(none)
    worker = Worker.objects.create(host="a", boot="b", pid=1, pid_started="1", version="1")
    assert check().why.endswith("1 worker could: Reconcile offers them again.")
    Worker.objects.filter(id=worker.id).update(leaving=True)
    assert check().why.endswith(none)


def test_an_interrupted_turn_is_counted_and_listed_until_somebody_decides(client, olivia, session):
    run = add(session, timezone.now(), "interrupted")
    add(session, timezone.now() - timedelta(days=2), "interrupted")
    check = next(check for check in page.of(olivia).checks if check.name == "Interrupted turns")
    client.force_login(olivia)
    listed = client.get(check.url).context["cl"].result_list
    assert (check.count, [one.id for one in listed]) == (1, [run.id])


def test_a_long_queue_leads_to_the_turns_in_it(client, olivia, alice):
    long = queue_of(alice, 5)
    queue_of(alice, 4)
    check = next(check for check in page.of(olivia).checks if check.name == "Long queues")
    client.force_login(olivia)
    listed = client.get(check.url).context["cl"].result_list
    assert (check.count, [one.session_id for one in listed]) == (1, [long.id] * 5)


def test_runs_that_need_attention_are_counted_up_to_a_bound(client, olivia, alice, monkeypatch):
    queue_of(alice, 6)
    client.force_login(olivia)
    monkeypatch.setattr(page, "COUNTED", 4)
    monkeypatch.setattr(predicates, "QUEUED_LOOKED_AT", 5)
    text = " ".join(client.get("/admin/dashboard/").content.decode().split())
    assert "! at least 4" in text
    assert "turns nobody takes: at least 4, long queues: at least 1" in text


def test_many_agents_share_the_last_colour(olivia, alice):
    for number in range(8):
        session = Session.objects.create(owner=alice, agent=f"agent{number}")
        add(session, timezone.now(), input_tokens=10 - number)
    pictures, _ = shown(olivia)
    assert [(one.name, sum(one.values)) for one in pictures["tokens"].chart.series] == [
        *((f"agent{number}", 10 - number) for number in range(5)),
        ("others", 5 + 4 + 3),
    ]


def test_the_dashboard_takes_few_queries_however_many_runs_there_are(client, olivia, session):
    client.force_login(olivia)
    counts = []
    for _ in range(2):
        for ago in range(40):
            run = add(session, timezone.now() - timedelta(days=ago), "cancelled", input_tokens=1)
            cancel(run, 1, run.finished_at)
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            assert client.get("/admin/").status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1] < 30
