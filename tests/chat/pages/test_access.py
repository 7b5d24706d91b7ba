"""Who may see and do what on the pages."""

from uuid import uuid4

from django.conf import settings
from django.test import AsyncClient, Client

from runs.models import Session
from tests.chat.pages.browser import chat_of, held_chat_of
from tests.runs import waiting

GET, POST = "get", "post"
PAGES = [
    (GET, "/chat/{session}/"),
    (GET, "/chat/{session}/messages/"),
    (GET, "/chat/{session}/messages/?run={run}"),
    (POST, "/chat/{session}/send/"),
    (POST, "/chat/{session}/stop/"),
    (GET, "/chat/{session}/rename/"),
    (POST, "/chat/{session}/rename/"),
    (GET, "/chat/{session}/delete/"),
    (POST, "/chat/{session}/delete/"),
    *((POST, f"/chat/{{session}}/runs/{{run}}/{name}/") for name in ("cancel", "answer", "resume", "retry")),
    (POST, "/chat/{session}/runs/{run}/dismiss/"),
]


async def test_a_stranger_finds_the_same_nothing_behind_a_foreign_id_and_an_unknown_one(as_bob, alice, model):
    session, run = await held_chat_of(alice, model)
    for method, path in PAGES:
        data = {"text": "x", "title": "x"}
        foreign = await getattr(as_bob, method)(path.format(session=session, run=run), data)
        unknown = await getattr(as_bob, method)(path.format(session=uuid4(), run=uuid4()), data)
        assert (path, foreign.status_code) == (path, unknown.status_code) == (path, 404)
        assert foreign.content == unknown.content
    found = await waiting.status(run, "running")
    assert found.cancel_requested_at is None
    model.script.open_all()
    await waiting.status(run, "completed")


async def test_a_run_cannot_be_reached_through_another_session(as_bob, alice, bob, model):
    _, foreign_run = await held_chat_of(alice, model)
    own_session, own_run = await chat_of(bob)
    other_session, _ = await chat_of(bob)
    for session, run in ((own_session, foreign_run), (other_session, own_run)):
        answer = await as_bob.post(f"/chat/{session}/runs/{run}/cancel/")
        assert answer.status_code == 404
    await waiting.status(foreign_run, "running")


async def test_nobody_gets_in_without_a_login(engine, model, alice):
    session, run = await chat_of(alice)
    charlie = AsyncClient()
    others = [(GET, "/chat/"), (POST, "/chat/"), (GET, "/chat/list/"), (GET, "/account/")]
    others += [(POST, f"/account/{name}/") for name in ("password", "tokens", "tokens/1/revoke")]
    for method, path in PAGES + others:
        answer = await getattr(charlie, method)(path.format(session=session, run=run))
        assert (path, answer.status_code) == (path, 302)
        assert answer.headers["Location"].startswith("/login/?next=")


def test_forms_need_their_csrf_token(alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice, settings.AUTHENTICATION_BACKENDS[-1])
    answer = client.post("/chat/", {"text": "Hello"})
    assert answer.status_code == 403
    assert b"This form has expired" in answer.content
    assert not Session.objects.exists()
