"""Who gets a socket, and what the others are told."""

import json
import threading

import pytest
from django.db import OperationalError

from chat.access import logins, open_connections
from chat.websocket import routing
from runs.foundation.database import in_thread
from tests.chat.live import PATIENT, Socket, bearer, socket
from tests.chat.websocket.handshakes import HOST, UNKNOWN, cookie_of

pytestmark = pytest.mark.django_db(transaction=True)


async def attempt(path: str, headers: dict[str, str]) -> int | None:
    """How it ends: None (open), 403 (refused before it was accepted), or the code it is closed with."""
    client = Socket(path, headers)
    accepted, _ = await client.connect(PATIENT)
    if not accepted:
        await client.wait(PATIENT)
        return 403
    message = await client.receive_output(PATIENT)
    if message["type"] == "websocket.close":
        await client.wait(PATIENT)
        return message["code"]
    await client.disconnect(timeout=PATIENT)
    return None


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://chat.example", None),
        ("https://chat.example", None),
        ("HTTPS://Chat.Example", None),
        ("http://chat.example:8001", 403),
        ("http://evil.example", 403),
        ("http://chat.example.evil.example", 403),
        ("http://evil.example/chat.example", 403),
        ("http://chat.example@evil.example", 403),
        ("http://chat.example/", 403),
        ("http://chat.example/path", 403),
        ("http://chat.example?", 403),
        ("http://chat.example#part", 403),
        ("ftp://chat.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[broken", 403),
        (None, 403),
    ],
)
async def test_with_a_cookie_the_origin_must_be_ours(engine, alice, session, origin, expected):
    headers = {**HOST, **await in_thread(cookie_of, alice)}
    if origin is not None:
        headers["origin"] = origin
    assert await attempt(f"/ws/sessions/{session}/", headers) == expected


async def test_our_own_host_behind_a_tls_proxy(engine, alice, session, settings):
    cookie = await in_thread(cookie_of, alice)
    path = f"/ws/sessions/{session}/"
    behind = {"host": "testserver", "origin": "https://chat.example", **cookie}
    assert await attempt(path, behind) == 403
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.chat.example", "https://chat.example"]
    assert await attempt(path, behind) is None
    assert await attempt(path, behind | {"origin": "https://eu.chat.example"}) is None
    assert await attempt(path, behind | {"origin": "http://chat.example"}) == 403
    assert await attempt(path, behind | {"origin": "https://chat.example/path"}) == 403


async def test_a_token_needs_no_origin_but_a_foreign_one_is_refused(engine, alice, session):
    token = await bearer(alice)
    path = f"/ws/sessions/{session}/"
    assert await attempt(path, token) is None
    assert await attempt(path, {**token, **HOST, "origin": "http://chat.example"}) is None
    assert await attempt(path, {**token, "origin": "http://evil.example"}) == 403


@pytest.mark.parametrize(
    "path", ["/ws/", "/ws/nothing/", "/", "/ws/sessions", "/ws/sessions/a/b/", "/api/sessions/"]
)
async def test_an_unknown_path_is_refused_without_a_traceback(engine, alice, path, caplog):
    assert await attempt(path, await bearer(alice)) == 403
    assert not caplog.records


async def test_without_a_login_nobody_gets_in(engine, alice, session):
    path = f"/ws/sessions/{session}/"
    ours = {**HOST, "origin": "http://chat.example"}
    token = (await bearer(alice))["authorization"].removeprefix("Bearer ")
    for headers in (
        {},
        ours,
        {**ours, "cookie": "sessionid=unknownunknownunknown"},
        {**ours, "cookie": "sessionid=%00"},
        {"authorization": "Bearer nonsense"},
        {"authorization": "Bearer"},
        {"authorization": f"Token {token}"},
    ):
        assert await attempt(path, headers) == 403
    assert await attempt(f"{path}?token={token}", {}) == 403
    assert await attempt("/ws/sessions/", ours) == 403


async def test_a_login_of_before_a_password_change_is_none(engine, alice, session):
    headers = {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, alice)}
    alice.set_password("another")
    await alice.asave()
    assert await attempt(f"/ws/sessions/{session}/", headers) == 403


async def test_foreign_unknown_and_malformed_sessions_get_the_same_close(engine, bob, session):
    token = await bearer(bob)
    for unreachable in (session, UNKNOWN, "no-uuid", "%00"):
        assert await attempt(f"/ws/sessions/{unreachable}/", token) == 4404


@pytest.mark.parametrize("by", ["cookie", "token"])
async def test_while_the_database_is_unavailable_a_handshake_is_answered_with_503(
    engine, alice, session, by, monkeypatch, caplog
):
    ours = {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, alice)}
    headers = await bearer(alice) if by == "token" else ours
    monkeypatch.setattr(logins, {"cookie": "by_session", "token": "by_token"}[by], unavailable)
    assert await answer_unavailable(f"/ws/sessions/{session}/", headers)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_database_that_says_nothing_holds_up_no_handshake(engine, alice, session, monkeypatch):
    may_answer = threading.Event()
    headers = await bearer(alice)
    monkeypatch.setattr(routing, "LOGIN_WITHIN", 0.05)
    monkeypatch.setattr(logins, "by_token", lambda token: may_answer.wait(PATIENT))
    try:
        assert await answer_unavailable(f"/ws/sessions/{session}/", headers)
    finally:
        may_answer.set()


async def answer_unavailable(path, headers):
    """Whether it is answered as REST would, with a 503 and a sentence."""
    client = Socket(path, headers)
    await client.send_input({"type": "websocket.connect"})
    start, content = [await client.receive_output(PATIENT) for _ in range(2)]
    await client.wait(PATIENT)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
    assert (b"Retry-After", b"1") in start["headers"]
    told = json.loads(content["body"])["error"]
    return told == {
        "code": "unavailable",
        "message": "The database does not answer. Try again in a moment.",
    }


async def test_sockets_are_limited_for_each_user(engine, alice, bob, session, monkeypatch):
    monkeypatch.setitem(open_connections.LIMITS, open_connections.Kind.SOCKET, 2)
    async with socket(alice, session), socket(alice):
        assert await attempt("/ws/sessions/", await bearer(alice)) == 4429
        async with socket(bob):
            pass
    async with socket(alice) as again:
        await again.say("ping")
        assert (await again.frame())["type"] == "pong"


def unavailable(*args, **options):
    raise OperationalError("the server closed the connection unexpectedly")
