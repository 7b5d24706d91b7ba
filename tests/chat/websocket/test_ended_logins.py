"""An open socket ends soon after its login does."""

import pytest
from django.contrib.sessions.backends.db import SessionStore

from chat.access import open_connections, tokens
from runs.foundation.database import in_thread
from tests.chat.live import bearer, socket
from tests.chat.websocket.handshakes import with_cookie

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    assert open_connections.LOGIN_CHECK_INTERVAL < 4  # of the five seconds that are promised
    monkeypatch.setattr(open_connections, "LOGIN_CHECK_INTERVAL", 0.05)


async def test_logout_ends_the_sockets_of_that_login_only(engine, alice, session):
    leaving, staying = await with_cookie(alice), await with_cookie(alice)
    async with socket(alice, session, **leaving) as ended, socket(alice, session, **staying) as kept:
        key = leaving["cookie"].removeprefix("sessionid=")
        await in_thread(SessionStore(key).delete)
        assert await ended.closed() == 4401
        await kept.say("ping")
        await kept.until("pong")


async def test_a_password_change_ends_them(engine, alice, session):
    async with socket(alice, session, **await with_cookie(alice)) as client:
        alice.set_password("another")
        await alice.asave()
        assert await client.closed() == 4401


@pytest.mark.parametrize("by", ["cookie", "token"])
async def test_a_deactivation_ends_them(engine, alice, session, by):
    headers = await with_cookie(alice) if by == "cookie" else await bearer(alice)
    async with socket(alice, session, **headers) as client, socket(alice, **headers) as overview:
        alice.is_active = False
        await alice.asave()
        assert await client.closed() == 4401
        assert await overview.closed() == 4401


async def test_a_revoked_token_ends_its_sockets(engine, alice, session):
    async with socket(alice, session) as client:
        token = await in_thread(tokens.tokens_of(alice).get)
        await in_thread(tokens.revoke, alice, token.id)
        assert await client.closed() == 4401


async def test_a_look_that_fails_ends_nobody(engine, alice, session, monkeypatch):
    looks = iter([ConnectionError("the database is unavailable"), True, True])

    def look(login):
        found = next(looks, False)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("chat.access.logins.still_holds", look)
    async with socket(alice, session) as client:
        assert await client.closed() == 4401
    assert next(looks, None) is None
