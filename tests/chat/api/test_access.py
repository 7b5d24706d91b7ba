"""Who may call what: every endpoint of the REST API for its owner, a stranger, nobody and an operator."""

import pytest
from django.contrib.auth.models import Permission

from runs.models import Session
from runs.states import RunStatus
from tests.chat.api.programs import UNKNOWN, Program, a_run, error_of, open_session

UNAUTHENTICATED = (401, "unauthenticated")
NOT_FOUND = (404, "not_found")
FORBIDDEN = (403, "forbidden")

# Each line is a call on what belongs to alice: method, address, the status her run must be in, body, and the
# status that alice gets. A stranger and an operator get a 404 except where the line says otherwise.
ON_A_SESSION = [
    ("GET", "sessions/{session}/", None, None, 200),
    ("PATCH", "sessions/{session}/", None, {"title": "Mine"}, 200),
    ("DELETE", "sessions/{session}/", None, None, 204),
    ("GET", "sessions/{session}/history/", None, None, 200),
    ("GET", "sessions/{session}/runs/", None, None, 200),
    ("POST", "sessions/{session}/runs/", None, {"input": "hello"}, 202),
    ("POST", "sessions/{session}/cancel/", None, {}, 200),
]
ON_A_RUN = [
    ("GET", "runs/{run}/", RunStatus.QUEUED, None, 200),
    ("GET", "runs/{run}/events/", RunStatus.QUEUED, None, 200),
    ("POST", "runs/{run}/cancel/", RunStatus.QUEUED, {}, 200),
    ("POST", "runs/{run}/answer/", RunStatus.WAITING, {"answers": {"q1": "that one"}}, 200),
    ("POST", "runs/{run}/resume/", RunStatus.INTERRUPTED, {}, 202),
    ("POST", "runs/{run}/retry/", RunStatus.INTERRUPTED, {}, 202),
    ("POST", "runs/{run}/dismiss/", RunStatus.INTERRUPTED, {}, 200),
]
FOR_OPERATORS = [
    ("POST", "runs/{run}/force-cancel/", RunStatus.QUEUED, {"reason": "stuck"}, 200),
    ("POST", "runs/{run}/reconcile/", RunStatus.QUEUED, {"reason": "stuck"}, 200),
]
FOR_OPERATORS_ALONE = [("GET", "workers/", None, None, 200)]
FOR_ANYBODY_KNOWN = [
    ("GET", "agents/", None, None, 200),
    ("GET", "sessions/", None, None, 200),
    ("POST", "sessions/", None, {}, 201),
]
JSON = {"Accept": "application/json"}


def ids(lines):
    return [f"{method} {address}" for method, address, *_ in lines]


def prepare(alice, address, status):
    session = open_session(alice)
    run = a_run(alice, status, session) if status else UNKNOWN
    return address.format(session=session, run=run)


@pytest.mark.parametrize("line", ON_A_SESSION + ON_A_RUN, ids=ids(ON_A_SESSION + ON_A_RUN))
def test_what_is_alices_is_hers_alone(line, alice, as_alice, as_bob, as_olivia, as_charlie):
    method, address, status, body, expected = line
    path = prepare(alice, address, status)
    unknown = address.format(session=UNKNOWN, run=UNKNOWN)
    malformed = address.format(session="no-uuid", run="no-uuid")
    assert error_of(as_charlie(method, path, body, **JSON)) == UNAUTHENTICATED
    assert error_of(as_charlie(method, unknown, body, **JSON)) == UNAUTHENTICATED
    answers = [
        somebody(method, place, body, **JSON)
        for somebody in (as_bob, as_olivia)
        for place in (path, unknown, malformed)
    ]
    assert {error_of(answer) for answer in answers} == {NOT_FOUND}
    assert len({answer.content for answer in answers}) == 1  # nothing tells foreign from unknown
    own = as_alice(method, path, body, **JSON)
    assert own.status_code == expected, own.content


@pytest.mark.parametrize("line", FOR_OPERATORS, ids=ids(FOR_OPERATORS))
def test_what_is_for_operators_is_refused_to_owners(line, alice, as_alice, as_bob, as_olivia, as_charlie):
    method, address, status, body, expected = line
    path = prepare(alice, address, status)
    unknown = address.format(session=UNKNOWN, run=UNKNOWN)
    assert error_of(as_charlie(method, path, body)) == UNAUTHENTICATED
    assert error_of(as_alice(method, path, body)) == FORBIDDEN
    foreign, absent = as_bob(method, path, body), as_bob(method, unknown, body)
    assert error_of(foreign) == error_of(absent) == NOT_FOUND
    assert foreign.content == absent.content
    assert error_of(as_olivia(method, unknown, body)) == NOT_FOUND
    assert as_olivia(method, path, body).status_code == expected


@pytest.mark.parametrize("line", FOR_OPERATORS_ALONE, ids=ids(FOR_OPERATORS_ALONE))
def test_what_is_nobodys_own_is_for_operators_alone(line, as_alice, as_olivia, as_charlie):
    method, path, _, body, expected = line
    assert error_of(as_charlie(method, path, body)) == UNAUTHENTICATED
    assert error_of(as_alice(method, path, body)) == FORBIDDEN
    assert as_olivia(method, path, body).status_code == expected


@pytest.mark.parametrize("permission", ["force_cancel_run", "reconcile_run", "view_worker"])
def test_each_permission_opens_its_own_address_and_no_other(alice, bob, as_bob, permission):
    bob.user_permissions.add(Permission.objects.get(codename=permission))
    run = a_run(alice)
    answers = {
        "force_cancel_run": as_bob.post(f"runs/{run}/force-cancel/", {"reason": "stuck"}),
        "reconcile_run": as_bob.post(f"runs/{run}/reconcile/", {"reason": "stuck"}),
        "view_worker": as_bob.get("workers/"),
    }
    assert [name for name, answer in answers.items() if answer.status_code == 200] == [permission]
    assert error_of(as_bob.get(f"runs/{run}/")) == NOT_FOUND


@pytest.mark.parametrize("path", ["schema/", "docs/"])
def test_the_description_is_for_everybody(as_charlie, as_alice, path):
    for somebody in (as_charlie, as_alice):
        assert somebody.get(path, Accept="text/html").status_code == 200
        assert error_of(somebody("PUT", path)) == (405, "invalid")


@pytest.mark.parametrize("line", FOR_ANYBODY_KNOWN, ids=ids(FOR_ANYBODY_KNOWN))
def test_what_is_for_everybody_known_is_not_for_the_unknown(line, as_alice, as_olivia, as_charlie):
    method, path, _, body, expected = line
    assert error_of(as_charlie(method, path, body)) == UNAUTHENTICATED
    assert as_alice(method, path, body).status_code == expected
    assert as_olivia(method, path, body).status_code == expected


def test_every_address_is_in_the_table():
    from chat.api.urls import urlpatterns

    in_table = {
        address.replace("{session}", "<str:session_id>").replace("{run}", "<str:run_id>")
        for _, address, *_ in ON_A_SESSION
        + ON_A_RUN
        + FOR_OPERATORS
        + FOR_OPERATORS_ALONE
        + FOR_ANYBODY_KNOWN
    }
    open_to_all = {"", "schema/", "docs/"}
    assert {str(pattern.pattern) for pattern in urlpatterns} - open_to_all == in_table


def test_a_list_shows_ones_own_only(alice, as_alice, as_bob, as_olivia):
    session = open_session(alice)
    assert [found["id"] for found in as_alice.get("sessions/").json()["results"]] == [session]
    assert as_bob.get("sessions/").json()["results"] == []
    assert as_olivia.get("sessions/").json()["results"] == []


def test_a_refused_cancel_changes_nothing(alice, as_bob, as_charlie):
    session = open_session(alice)
    a_run(alice, RunStatus.RUNNING, session)
    before = Session.objects.values().get(id=session)
    for somebody in (as_bob, as_charlie):
        assert somebody.post(f"sessions/{session}/cancel/").status_code in (401, 404)
    assert Session.objects.values().get(id=session) == before
    assert not Session.objects.get(id=session).cancellations.exists()


def test_bob_cannot_reach_alices_run_through_his_own_session(alice, bob, as_bob):
    run = a_run(alice, RunStatus.RUNNING)
    own = open_session(bob)
    for path in (f"sessions/{own}/runs/{run}/cancel/", f"runs/{run}/cancel/", f"sessions/{run}/cancel/"):
        assert error_of(as_bob.post(path)) == NOT_FOUND


def test_the_token_of_a_deactivated_user_is_refused(alice, as_alice):
    alice.is_active = False
    alice.save()
    response = as_alice.get("sessions/")
    assert error_of(response) == UNAUTHENTICATED
    assert response["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Bearer nonsense", "Bearer a b", "Token {}", "{}"])
def test_only_a_whole_bearer_header_lets_in(as_alice, header):
    token = as_alice.headers["Authorization"].removeprefix("Bearer ")
    response = Program().get("sessions/", Authorization=header.format(token))
    assert error_of(response) == UNAUTHENTICATED


def test_a_token_in_the_address_counts_for_nothing(as_alice):
    token = as_alice.headers["Authorization"].removeprefix("Bearer ")
    for name in ("token", "access_token", "Authorization"):
        assert error_of(Program().get(f"sessions/?{name}={token}")) == UNAUTHENTICATED


def test_the_scheme_is_read_without_regard_to_case(as_alice):
    header = as_alice.headers["Authorization"].replace("Bearer", "bearer")
    assert Program().get("sessions/", Authorization=header).status_code == 200


def test_a_bad_token_is_refused_though_the_cookie_is_good(client, alice, transactional_db):
    client.force_login(alice)
    assert client.get("/api/sessions/").status_code == 200
    assert client.get("/api/sessions/", headers={"Authorization": "Bearer x"}).status_code == 401
