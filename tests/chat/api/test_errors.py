"""Errors have one form, whoever raised them and whatever the client accepts."""

import json

import psycopg
import pytest
from django.db import OperationalError
from django.test import Client
from rest_framework.exceptions import ValidationError

from chat.api import inputs
from runs.models import Run, Session
from runs.states import RunStatus
from tests.chat.api.programs import UNKNOWN, Program, a_run, error_of, message_of, open_session

ACCEPTS = [
    "text/event-stream",
    "*/*",
    "application/json",
    "",
    "text/html,application/xhtml+xml;q=0.9",
    "image/png",
]


@pytest.mark.parametrize("accept", ACCEPTS)
def test_an_error_keeps_its_status_whatever_accept_says(alice, as_alice, as_bob, as_charlie, accept):
    run = a_run(alice)
    path = f"runs/{run}/events/"
    assert error_of(as_charlie.get(path, Accept=accept)) == (401, "unauthenticated")
    assert error_of(as_bob.get(path, Accept=accept)) == (404, "not_found")
    assert error_of(as_alice.get(f"runs/{UNKNOWN}/events/", Accept=accept)) == (404, "not_found")
    assert error_of(as_alice.get("nowhere/", Accept=accept)) == (404, "not_found")
    assert error_of(as_alice("PUT", path, {}, Accept=accept)) == (405, "invalid")


@pytest.mark.parametrize(
    "kind", [OperationalError, psycopg.OperationalError], ids=["of the ORM", "of a saver"]
)
def test_an_unavailable_database_is_no_error_of_the_request(as_alice, monkeypatch, kind):
    def unavailable(*args, **options):
        raise kind("the server closed the connection unexpectedly")

    monkeypatch.setattr("runs.operations.create_session", unavailable)
    answer = as_alice.post("sessions/", {})
    assert error_of(answer) == (503, "unavailable")
    assert message_of(answer) == "The database does not answer. Try again in a moment."


@pytest.mark.parametrize("path", ["nowhere/", "sessions", "sessions/a/b/c/", "", "%00/"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_address_is_a_json_404_for_everybody(as_alice, as_charlie, method, path):
    for somebody in (as_alice, as_charlie):
        assert error_of(somebody(method, path)) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "sessions/"), ("POST", "agents/"), ("TRACE", "sessions/"), ("BREW", "agents/")],
)
def test_another_method_is_405_and_names_the_allowed_ones(as_alice, method, path):
    response = as_alice(method, path, {})
    assert error_of(response) == (405, "invalid")
    assert "GET" in response["Allow"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("sessions/", "GET, HEAD, OPTIONS, POST"),
        ("sessions/{session}/", "GET, HEAD, OPTIONS, PATCH, DELETE"),
        ("runs/{run}/cancel/", "OPTIONS, POST"),
    ],
)
def test_options_names_the_methods_and_changes_nothing(alice, as_alice, as_charlie, path, allowed):
    session = open_session(alice)
    path = path.format(session=session, run=a_run(alice, session=session))
    response = as_alice("OPTIONS", path)
    assert (response.status_code, response.content) == (204, b"")
    assert sorted(response["Allow"].split(", ")) == sorted(allowed.split(", "))
    assert error_of(as_charlie("OPTIONS", path)) == (401, "unauthenticated")
    assert Run.objects.get().status == "queued"


@pytest.mark.parametrize("path", ["agents/", "sessions/", "sessions/{session}/", "runs/{run}/", "workers/"])
def test_head_is_get_without_its_body(olivia, as_olivia, path):
    session = open_session(olivia)
    path = path.format(session=session, run=a_run(olivia, session=session))
    response = as_olivia("HEAD", path)
    assert (response.status_code, response.content) == (200, b"")
    assert response["Content-Type"] == as_olivia.get(path)["Content-Type"]


def test_head_of_a_log_follows_nothing(alice, as_alice, as_bob):
    path = f"runs/{a_run(alice)}/events/"
    for accept, kind in [("*/*", "text/event-stream"), ("application/json", "application/json")]:
        response = as_alice("HEAD", path, Accept=accept)
        assert (response.status_code, response.content) == (200, b"")
        assert response["Content-Type"].startswith(kind)
    assert as_bob("HEAD", path).status_code == 404
    ended = f"runs/{a_run(alice, RunStatus.COMPLETED)}/events/"
    assert as_alice("HEAD", ended).status_code == 200
    assert (
        as_alice("HEAD", f"{ended}?after=1").status_code
        == as_alice.get(f"{ended}?after=1").status_code
        == 204
    )


def test_a_body_where_none_belongs_is_not_looked_at(as_alice):
    response = as_alice.client.generic(
        "GET", "/api/sessions/", b"nonsense", content_type="text/plain", headers=as_alice.headers
    )
    assert response.status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "nonsense",
        "[]",
        "null",
        '"x"',
        "1",
        "[" * 5000 + "]" * 5000,
        '{"title": NaN}',
        "\xff",
        "1" * 5000,
    ],
)
def test_a_body_that_is_no_json_object_is_invalid(as_alice, body):
    response = as_alice.client.post(
        "/api/sessions/", body.encode("latin1"), content_type="application/json", headers=as_alice.headers
    )
    assert error_of(response) == (400, "invalid")


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_another_content_type_is_415(as_alice, content_type):
    response = as_alice.client.post(
        "/api/sessions/", b"title=x", content_type=content_type, headers=as_alice.headers
    )
    assert error_of(response) == (415, "invalid")


def test_no_body_is_an_empty_object(as_alice):
    assert as_alice("POST", "sessions/").status_code == 201


def test_a_body_over_the_limit_is_too_large(as_alice, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert error_of(as_alice.post("sessions/", {"title": "x" * 1000})) == (413, "too_large")


def test_a_text_of_a_megabyte_is_too_large(alice, as_alice, settings):
    session = open_session(alice)
    assert error_of(as_alice.post(f"sessions/{session}/runs/", {"input": "x" * 1_000_000})) == (
        413,
        "too_large",
    )
    assert not Run.objects.exists()


UNSTORABLE = {"NUL": "a\0b", "lone surrogate": "a\ud800b"}


@pytest.mark.parametrize("text", UNSTORABLE.values(), ids=UNSTORABLE)
@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "sessions/", {"title": "TEXT"}, "title"),
        ("POST", "sessions/", {"agent": "TEXT"}, "agent"),
        ("PATCH", "sessions/{session}/", {"title": "TEXT"}, "title"),
        ("POST", "sessions/{session}/runs/", {"input": "TEXT"}, "input"),
        ("POST", "sessions/{session}/runs/", {"input": "x", "multitask": "TEXT"}, "multitask"),
        ("POST", "sessions/{session}/cancel/", {"reason": "TEXT"}, "reason"),
        ("POST", "runs/{run}/cancel/", {"reason": "TEXT"}, "reason"),
        ("POST", "runs/{run}/answer/", {"answers": {"q": ["TEXT"]}}, "answers"),
        ("POST", "runs/{run}/answer/", {"answers": {"TEXT": 1}}, "answers"),
        ("POST", "runs/{run}/retry/", {"input": "TEXT"}, "input"),
        ("POST", "runs/{run}/force-cancel/", {"reason": "TEXT"}, "reason"),
    ],
)
def test_text_that_cannot_be_stored_is_refused_naming_the_field(
    olivia, as_olivia, method, path, body, field, text
):
    session = open_session(olivia)
    run = a_run(olivia, session=session)
    body = json.loads(json.dumps(body).replace("TEXT", json.dumps(text)[1:-1]))
    response = as_olivia(method, path.format(session=session, run=run), body)
    assert error_of(response) == (400, "invalid")
    assert field in message_of(response)


@pytest.mark.parametrize("query", ["search=a%00b", "status=%00", "origin=%00", "cursor=%00", "limit=%00"])
def test_a_nul_in_a_filter_is_never_a_500(as_alice, query):
    response = as_alice.get(f"sessions/?{query}")
    assert response.status_code in (200, 400)
    if response.status_code == 400:
        assert error_of(response) == (400, "invalid")


@pytest.mark.parametrize(
    "query", ["before=%00", "limit=%00", "render=%00", "limit=0", "limit=x", "render=pdf"]
)
def test_a_wrong_filter_of_the_history_is_invalid(alice, as_alice, query):
    assert error_of(as_alice.get(f"sessions/{open_session(alice)}/history/?{query}")) == (400, "invalid")


@pytest.mark.parametrize("value", [1, 1.5, True, None, [], {}, "", "   ", "\n\t"])
def test_a_message_must_be_a_text_with_something_in_it(alice, as_alice, value):
    response = as_alice.post(f"sessions/{open_session(alice)}/runs/", {"input": value})
    assert error_of(response) == (400, "invalid")
    assert "input" in message_of(response)
    assert not Run.objects.exists()


@pytest.mark.parametrize("number", [2**63, -(2**70), 1e20, 1e300])
def test_an_answer_with_a_number_that_cannot_be_kept_is_refused(alice, as_alice, number):
    run = a_run(alice, RunStatus.WAITING)
    response = as_alice.post(f"runs/{run}/answer/", {"answers": {"q1": {"x": [number]}}})
    assert error_of(response) == (400, "invalid")
    assert "answers" in message_of(response)
    assert Run.objects.get(id=run).answers is None
    assert as_alice.post(f"runs/{run}/answer/", {"answers": {"q1": [2**63 - 1, 0.5]}}).status_code == 200


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [1, True, [], {}, nested(10_000)], ids=["number", "boolean", "list", "object", "deep list"]
)
@pytest.mark.parametrize("name", ["multitask", "on_disconnect", "stream_modes"])
def test_a_choice_is_a_text_however_deep_what_was_sent_is_nested(name, value):
    """What the parser can just about read may be too deep to be written out."""
    sent = [value] if name == "stream_modes" else value
    with pytest.raises(ValidationError) as refused:
        inputs.NewTurn.read({"input": "x", name: sent})
    assert list(refused.value.detail) == [name]


def test_unknown_fields_are_ignored(as_alice):
    assert as_alice.post("sessions/", {"title": "x", "colour": "blue"}).json()["title"] == "x"


class TestSessionCookie:
    """The browser's own credential, which comes by itself and so needs a CSRF token."""

    UNSAFE = [
        ("POST", "sessions/"),
        ("PATCH", f"sessions/{UNKNOWN}/"),
        ("DELETE", f"sessions/{UNKNOWN}/"),
        ("POST", f"sessions/{UNKNOWN}/runs/"),
        ("POST", f"sessions/{UNKNOWN}/cancel/"),
        ("POST", f"runs/{UNKNOWN}/cancel/"),
        ("POST", f"runs/{UNKNOWN}/answer/"),
        ("POST", f"runs/{UNKNOWN}/force-cancel/"),
    ]

    @pytest.fixture
    def browser(self, transactional_db, alice):
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(alice)
        return browser

    @pytest.mark.parametrize(("method", "path"), UNSAFE)
    @pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
    def test_every_unsafe_call_needs_the_token(self, browser, method, path, accept):
        response = browser.generic(
            method, f"/api/{path}", "{}", "application/json", headers={"Accept": accept}
        )
        assert error_of(response) == (403, "csrf_failed")
        assert not Session.objects.exists()

    def test_reading_needs_none(self, browser):
        assert browser.get("/api/sessions/").status_code == 200

    def test_with_the_token_the_call_is_made(self, browser):
        browser.get("/login/")
        browser.cookies["csrftoken"] = secret = "x" * 32
        response = browser.post(
            "/api/sessions/", {}, content_type="application/json", headers={"X-CSRFToken": secret}
        )
        assert response.status_code == 201

    def test_a_bearer_token_needs_none(self, browser, as_alice):
        response = browser.post(
            "/api/sessions/", {}, content_type="application/json", headers=as_alice.headers
        )
        assert response.status_code == 201


def test_a_fault_of_ours_is_a_json_500_that_tells_nothing(as_alice, monkeypatch):
    def broken() -> None:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr("runs.operations.agents", broken)
    response = as_alice.get("agents/")
    assert error_of(response) == (500, "internal")
    assert b"secret" not in response.content


def test_a_foreign_host_is_a_json_400(as_alice):
    assert error_of(as_alice.get("sessions/", Host="evil.example")) == (400, "invalid")


def test_turn_starts_are_throttled_for_each_user(alice, bob, as_alice, as_bob, monkeypatch):
    monkeypatch.setattr("chat.access.throttles.TurnStarts.rate", "2/hour")
    sessions = {"alice": open_session(alice), "bob": open_session(bob)}

    def start(program: Program, multitask: str = "enqueue"):
        path = f"sessions/{sessions[program.user.username]}/runs/"
        return program.post(path, {"input": "hello", "multitask": multitask})

    assert [start(as_alice).status_code for _ in range(2)] == [202, 202]
    refused = start(as_alice)
    assert error_of(refused) == (429, "throttled")
    assert 0 < int(refused["Retry-After"]) <= 3600
    assert start(as_bob).status_code == 202
    assert Run.objects.filter(session__owner=alice).count() == 2


def test_without_a_cache_nobody_is_held_up(alice, as_alice, monkeypatch):
    def down(*args, **kwargs):
        raise ConnectionError("no cache")

    monkeypatch.setattr("chat.access.throttles.TurnStarts.cache.get", down)
    assert as_alice.post(f"sessions/{open_session(alice)}/runs/", {"input": "hello"}).status_code == 202
