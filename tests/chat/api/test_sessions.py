"""Sessions over REST: opened, listed in pages, filtered, renamed, deleted, and their history."""

from base64 import b64encode
from datetime import UTC, timedelta
from datetime import timezone as timezone_of
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run, Session
from runs.states import Origin, RunStatus
from tests.chat.api.programs import a_run, error_of, message_of, open_session
from tests.chat.live import call, eventually
from tests.fakes import call as tool_call
from tests.fakes import say

SESSION = {
    "id", "title", "agent", "origin", "status", "active_run", "queued", "created_at", "updated_at",
    "cancellation_pending", "cancellation_revision", "statistics",
}  # fmt: skip


def test_a_session_is_opened_and_read(as_alice):
    opened = as_alice.post("sessions/", {"title": "Plans", "agent": "assistant"})
    assert opened.status_code == 201
    session = opened.json()
    assert set(session) == SESSION
    assert (session["title"], session["agent"], session["status"]) == ("Plans", "assistant", "idle")
    assert (session["cancellation_pending"], session["cancellation_revision"]) == (False, 0)
    assert opened["Location"] == f"/api/sessions/{session['id']}/"
    assert as_alice.get(f"sessions/{session['id']}/").json() == session


@pytest.mark.parametrize("fields", [{"agent": "nobody"}, {"title": "x" * 201}, {"title": 5}, {"agent": None}])
def test_a_session_that_cannot_be_is_refused(as_alice, fields):
    response = as_alice.post("sessions/", fields)
    assert error_of(response) == (400, "invalid")
    assert next(iter(fields)) in message_of(response).lower()
    assert not Session.objects.exists()


def test_the_list_comes_in_pages_that_lead_on_and_back(alice, as_alice):
    opened = [open_session(alice, title=f"{number}") for number in range(5)]
    first = as_alice.get("sessions/?limit=2").json()
    assert set(first) == {"results", "next", "previous"}
    assert first["previous"] is None
    seen, page = [], first
    while True:
        seen += [session["id"] for session in page["results"]]
        if page["next"] is None:
            break
        page = as_alice.get(page["next"].split("/api/")[1]).json()
    assert seen == list(reversed(opened))
    back = as_alice.get(page["previous"].split("/api/")[1]).json()
    assert [session["id"] for session in back["results"]] == seen[2:4]


def test_a_page_is_where_it_was_though_the_list_changes_meanwhile(alice, as_alice):
    opened = [open_session(alice, title=f"{number}") for number in range(6)]
    page = as_alice.get("sessions/?limit=2").json()
    assert [session["id"] for session in page["results"]] == [opened[5], opened[4]]
    open_session(alice, title="new")
    as_alice("PATCH", f"sessions/{opened[5]}/", {"title": "moved up"})
    as_alice("DELETE", f"sessions/{opened[4]}/")  # the one the cursor was made from
    as_alice("DELETE", f"sessions/{opened[2]}/")
    rest = []
    while page["next"]:
        page = as_alice.get(page["next"].split("/api/")[1]).json()
        rest += [session["id"] for session in page["results"]]
    assert rest == [opened[3], opened[1], opened[0]]


@pytest.mark.parametrize("limit", ["0", "201", "-1", "many", ""])
@pytest.mark.parametrize("path", ["sessions/", "sessions/{session}/runs/", "workers/"])
def test_a_page_of_no_possible_size_is_invalid(olivia, as_olivia, path, limit):
    path = path.format(session=open_session(olivia))
    response = as_olivia.get(f"{path}?limit={limit}")
    assert error_of(response) == (400, "invalid")
    assert "limit" in message_of(response)


@pytest.mark.parametrize(
    "query", ["cursor=nonsense", "cursor=cD1ub3RpbWU%3D", "cursor=cD0%3D", "cursor=%C3%BC"]
)
def test_a_cursor_of_somebody_elses_make_is_invalid(alice, as_alice, query):
    open_session(alice)
    assert error_of(as_alice.get(f"sessions/?{query}")) == (400, "invalid")


def cursor_of(moment):
    return b64encode(urlencode({"p": moment}).encode()).decode()


@pytest.mark.parametrize("path", ["sessions/", "sessions/{session}/runs/", "workers/"])
@pytest.mark.parametrize(
    "moment",
    [
        "\0",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-13-01T00:00:00Z",
        "0001-01-01T00:00:00+23:00",  # UTC has no such time
        "9999-12-31T23:59:59-23:00",
    ],
)
def test_a_cursor_without_a_time_that_can_be_is_invalid(olivia, as_olivia, path, moment):
    path = path.format(session=open_session(olivia))
    assert error_of(as_olivia.get(f"{path}?{urlencode({'cursor': cursor_of(moment)})}")) == (400, "invalid")


def test_sessions_of_the_same_moment_are_each_on_one_page(alice, as_alice):
    opened = {open_session(alice, title=f"{number}") for number in range(5)}
    Session.objects.update(updated_at=timezone.now())
    page = as_alice.get("sessions/?limit=2").json()
    seen = [session["id"] for session in page["results"]]
    while page["next"]:
        page = as_alice.get(page["next"].split("/api/")[1]).json()
        seen += [session["id"] for session in page["results"]]
    assert len(seen) == 5
    assert set(seen) == opened


def test_a_cursor_means_the_same_moment_in_any_time_zone(alice, as_alice):
    opened = [open_session(alice, title=f"{number}") for number in range(3)]
    middle = Session.objects.get(id=opened[1]).updated_at
    for zone in (UTC, timezone_of(timedelta(hours=14)), timezone_of(-timedelta(hours=12))):
        query = urlencode({"cursor": cursor_of(middle.astimezone(zone).isoformat())})
        found = as_alice.get(f"sessions/?{query}").json()["results"]
        assert [session["id"] for session in found] == opened[:1]


def test_the_list_is_searched_and_filtered(alice, as_alice):
    plans = open_session(alice, title="Plans for the garden")
    other = open_session(alice, title="Something else")
    api = open_session(alice, origin=Origin.API)
    a_run(alice, RunStatus.RUNNING, other)

    def found(query: str) -> set[str]:
        return {session["id"] for session in as_alice.get(f"sessions/?{query}").json()["results"]}

    assert found("") == {plans, other, api}
    assert found("search=GARDEN") == {plans}
    assert found("status=running") == {other}
    assert found("status=idle") == {plans, api}
    assert found("origin=api") == {api}
    assert found("search=garden&status=running") == set()
    assert found("search=&status=&origin=") == {plans, other, api}


@pytest.mark.parametrize("query", ["status=busy", "origin=moon", "search=" + "x" * 201])
def test_a_filter_that_is_none_is_invalid(as_alice, query):
    response = as_alice.get(f"sessions/?{query}")
    assert error_of(response) == (400, "invalid")
    assert query.split("=")[0] in message_of(response)


def test_the_list_takes_the_same_number_of_queries_however_long(
    alice, as_alice, django_assert_max_num_queries
):
    for number in range(20):
        a_run(alice, RunStatus.RUNNING, open_session(alice, title=f"{number}"))
    with django_assert_max_num_queries(20):
        assert len(as_alice.get("sessions/?limit=20").json()["results"]) == 20


def test_a_session_is_renamed(alice, as_alice):
    session = open_session(alice)
    assert as_alice("PATCH", f"sessions/{session}/", {"title": "Plans"}).json()["title"] == "Plans"
    for wrong in ({}, {"title": ""}, {"title": "  "}, {"title": None}, {"title": "x" * 201}):
        assert error_of(as_alice("PATCH", f"sessions/{session}/", wrong)) == (400, "invalid")
    assert as_alice.get(f"sessions/{session}/").json()["title"] == "Plans"


def test_the_runs_of_a_session_are_listed_newest_first(alice, as_alice):
    session = open_session(alice)
    runs = [a_run(alice, RunStatus.COMPLETED, session) for _ in range(3)]
    page = as_alice.get(f"sessions/{session}/runs/?limit=2").json()
    assert [run["id"] for run in page["results"]] == [runs[2], runs[1]]
    rest = as_alice.get(page["next"].split("/api/")[1]).json()
    assert [run["id"] for run in rest["results"]] == [runs[0]]


def test_the_agents_are_listed(as_alice):
    listed = as_alice.get("agents/").json()
    assert set(listed) == {"results", "next", "previous"}
    assert listed["results"][0]["name"] == "assistant"
    assert listed["results"][0]["default"] is True


@pytest.mark.django_db(transaction=True)
async def test_a_deleted_session_is_gone_with_its_active_run(engine, model, held, alice, session):
    await in_thread(operations.start_turn, alice, session, "hello")
    await held.reached()
    assert (await call(alice, "DELETE", f"sessions/{session}/")).status == 204
    assert (await call(alice, "GET", f"sessions/{session}/")).status == 404
    assert (await call(alice, "DELETE", f"sessions/{session}/")).status == 404
    assert not await Run.objects.aexists()


@pytest.mark.django_db(transaction=True)
async def test_the_history_is_shown_oldest_first_and_rendered_on_request(engine, model, alice, session):
    model.script.add(tool_call("mark", x="1"), say("It is **done**. <script>"))
    run = await in_thread(operations.start_turn, alice, session, "Do it")
    await eventually(lambda: in_thread(Run.objects.filter(id=run["id"], status="completed").exists))

    history = (await call(alice, "GET", f"sessions/{session}/history/")).json()
    assert set(history) == {"session", "messages", "run"}
    assert history["run"]["id"] == run["id"]
    assert [(message["role"], message["text"]) for message in history["messages"]] == [
        ("user", "Do it"),
        ("assistant", ""),
        ("assistant", "It is **done**. <script>"),
    ]
    assert history["messages"][1]["tool_calls"][0]["result"] == "marked 1"
    assert all("html" not in message for message in history["messages"])

    rendered = (await call(alice, "GET", f"sessions/{session}/history/?render=html")).json()
    assert "<strong>done</strong>" in rendered["messages"][2]["html"]
    assert "<script>" not in rendered["messages"][2]["html"]

    last = history["messages"][-1]["id"]
    before = (await call(alice, "GET", f"sessions/{session}/history/?limit=1&before={last}")).json()
    assert [message["id"] for message in before["messages"]] == [history["messages"][1]["id"]]
