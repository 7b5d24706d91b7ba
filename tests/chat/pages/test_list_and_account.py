"""The list of conversations, and the account."""

import re

import pytest
from django.conf import settings
from django.test import Client

from chat.access import tokens
from runs import operations
from runs.foundation.database import in_thread
from runs.models import Session
from tests.chat.pages.browser import chat_of, html_of
from tests.runs import waiting


async def test_the_list_is_searched_and_paged(as_alice, alice):
    def fill():
        for number in range(45):
            operations.create_session(alice, title=f"Boat number {number}")
        operations.create_session(alice, title="A house")

    await in_thread(fill)
    first = await html_of(as_alice, "/chat/list/")
    assert first.index("A house") < first.index("Boat number 44") < first.index("Boat number 43")
    older = re.search(r'href="(\?older=[^"]+)"', first)
    assert older
    rest = await html_of(as_alice, f"/chat/list/{older[1]}")
    names = re.findall(r'class="session-title">([^<]+)', first + rest)
    assert len(names) == len(set(names)) == 46
    found = await html_of(as_alice, "/chat/?q=house")
    assert re.findall(r'class="session-title">([^<]+)', found)[0] == "A house"
    assert "Boat number" not in found
    assert "Nothing found" in await html_of(as_alice, "/chat/list/?q=nothing+of+the+kind")


@pytest.mark.parametrize(
    "cursor",
    [
        "x", "2026-01-01", "2026-13-01T00:00:00+00:00,x", "\0", ",",
        *(f"{moment},7f6c1fd4-6d0f-4c0f-9a3e-000000000001"
          for moment in ("2026-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00")),
    ],
)  # fmt: skip
async def test_a_cursor_that_is_none_shows_the_first_page(as_alice, alice, cursor):
    await in_thread(operations.create_session, alice, title="A house")
    answer = await as_alice.get("/chat/list/", {"older": cursor})
    assert "A house" in answer.content.decode()


async def test_a_conversation_is_renamed_and_deleted_with_plain_forms(as_alice, alice):
    session, run = await chat_of(alice)
    await waiting.status(run, "completed")
    assert 'name="title"' in await html_of(as_alice, f"/chat/{session}/rename/")
    await as_alice.post(f"/chat/{session}/rename/", {"title": "Boats"})
    assert "Boats" in await html_of(as_alice, f"/chat/{session}/delete/")
    await as_alice.post(f"/chat/{session}/delete/")
    assert not await Session.objects.aexists()
    assert (await as_alice.get(f"/chat/{session}/")).status_code == 404


def test_a_token_is_shown_once_and_revoked_by_its_owner_only(client, alice, bob):
    client.force_login(alice, settings.AUTHENTICATION_BACKENDS[-1])
    page = client.post("/account/tokens/", {"name": "My <program>", "days": "30"}).content.decode()
    token = re.search(r'class="secret">(\w+)<', page)
    assert token
    assert "My &lt;program&gt;" in page
    found = tokens.recognise(token[1])
    assert found is not None
    assert found.user == alice
    assert token[1] not in client.get("/account/").content.decode()

    stranger = Client()
    stranger.force_login(bob, settings.AUTHENTICATION_BACKENDS[-1])
    assert stranger.post(f"/account/tokens/{found.id}/revoke/").status_code == 404
    assert tokens.recognise(token[1]) is not None
    client.post(f"/account/tokens/{found.id}/revoke/")
    assert tokens.recognise(token[1]) is None


def test_a_token_form_that_is_wrong_makes_no_token(client, alice):
    client.force_login(alice, settings.AUTHENTICATION_BACKENDS[-1])
    assert client.post("/account/tokens/", {"name": "", "days": "7"}).status_code == 400
    assert not tokens.tokens_of(alice).exists()


def test_a_password_change_keeps_this_login_and_needs_the_old_password(client, alice):
    client.force_login(alice, settings.AUTHENTICATION_BACKENDS[-1])
    new = {"new_password1": "a-new-long-one", "new_password2": "a-new-long-one"}
    assert client.post("/account/password/", {"old_password": "wrong", **new}).status_code == 400
    client.post("/account/password/", {"old_password": "alice-password", **new})
    alice.refresh_from_db()
    assert alice.check_password("a-new-long-one")
    assert client.get("/account/").status_code == 200
