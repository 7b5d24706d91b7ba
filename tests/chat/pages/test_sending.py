"""A form is sent once however often it arrives, and a refusal is a sentence."""

import asyncio
import re
from uuid import uuid4

import pytest
from django.conf import settings
from django.test import Client

from runs.foundation.database import in_thread
from runs.models import Run, Session
from tests.chat.pages.browser import chat_of
from tests.runs import waiting


async def test_a_first_message_sent_twice_opens_one_conversation(as_alice):
    form = {"text": "Hello", "request_id": str(uuid4())}
    first = await as_alice.post("/chat/", form)
    second = await as_alice.post("/chat/", form)
    assert first.status_code == 302
    assert first.headers["Location"] == second.headers["Location"]
    assert await Run.objects.acount() == await Session.objects.acount() == 1


async def test_a_first_message_sent_twice_at_once_opens_one_conversation(engine, model, alice):
    def client():
        found = Client()
        found.force_login(alice, settings.AUTHENTICATION_BACKENDS[-1])
        return found

    clients = [await in_thread(client) for _ in range(4)]
    form = {"text": "Hello", "request_id": str(uuid4())}
    answers = await asyncio.gather(*(in_thread(client.post, "/chat/", form) for client in clients))
    assert len({answer.headers["Location"] for answer in answers}) == 1
    run = await Run.objects.select_related("session").aget()
    assert answers[0].headers["Location"] == f"/chat/{run.session_id}/"
    assert run.session.origin == "chat"
    await waiting.status(run.id, "completed")


async def test_other_words_in_a_form_that_was_sent_already_are_not_swallowed(as_alice):
    form = {"text": "Hello", "request_id": str(uuid4())}
    await as_alice.post("/chat/", form)
    wants_json = {"accept": "application/json"}
    refused = await as_alice.post("/chat/", {**form, "text": "Hello again"}, headers=wants_json)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert (await Run.objects.aget()).input == "Hello"


async def test_what_was_sent_in_another_conversation_is_no_first_message(as_alice, alice):
    session, run = await chat_of(alice)
    form = {"text": "More", "request_id": str(uuid4())}
    await waiting.status(run, "completed")
    await as_alice.post(f"/chat/{session}/send/", form)
    answer = await as_alice.post("/chat/", form)
    assert answer.headers["Location"] != f"/chat/{session}/"
    assert await Session.objects.acount() == 2


@pytest.mark.parametrize("request_id", ["\0", "k", "x" * 300, "7f6c1fd4-6d0f-4c0f-9a3e-000000000001\0"])
async def test_a_request_id_that_is_none_is_refused(as_alice, alice, request_id):
    session, run = await chat_of(alice)
    await waiting.status(run, "completed")
    for path in ("/chat/", f"/chat/{session}/send/"):
        form = {"text": "Hello", "request_id": request_id}
        answer = await as_alice.post(path, form, headers={"accept": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")
    assert await Run.objects.acount() == 1


@pytest.mark.parametrize("words", ["", "   \r\n", "\0", "x" * (settings.RUNS_MESSAGE_LIMIT + 1)])
async def test_a_first_message_that_is_refused_leaves_no_empty_conversation(as_alice, words):
    answer = await as_alice.post("/chat/", {"text": words}, headers={"accept": "application/json"})
    assert answer.status_code in (400, 413)
    assert re.match(r'".+\.$', answer.json()["error"]["message"])
    assert not await Session.objects.aexists()


async def test_a_form_without_a_script_gets_the_refusal_as_a_sentence_on_the_page(as_alice, alice):
    session, _ = await chat_of(alice)
    answer = await as_alice.post(f"/chat/{session}/send/", {"text": " "}, follow=True)
    assert "is empty. Write something." in answer.content.decode()
