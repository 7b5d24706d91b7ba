"""The pages as the server sends them; what a browser makes of them is tested in ``tests/e2e``."""

import asyncio
import re
import threading
from pathlib import Path
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import OperationalError
from django.test import AsyncClient, Client
from django.utils.html import escape
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from chat import rendering
from chat.access import tokens
from chat.templatetags.transcript import settled
from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run, Session
from runs.states import Origin
from tests.chat.live import Http, eventually
from tests.fakes import Hold, Marks, Round, ScriptedModel, call, plain_graph, say, text, tools
from tests.runs import waiting

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} {% now 'Y' %} </script>"


@pytest.fixture
def model(serve, tmp_path):
    """The model behind the default agent; its gates are opened at the end."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


async def browser_of(user) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(user, settings.AUTHENTICATION_BACKENDS[-1])
    return client


@pytest.fixture
async def as_alice(engine, model, alice):
    return await browser_of(alice)


@pytest.fixture
async def as_bob(engine, model, bob):
    return await browser_of(bob)


async def chat_of(user, words="Hello"):
    """A session with one turn that has been started; ``(session id, run id)``."""
    session = await in_thread(operations.create_session, user)
    run = await in_thread(operations.start_turn, user, session["id"], words)
    return session["id"], run["id"]


async def held_chat_of(user, model):
    """The same, with the turn stopped in mid-answer."""
    model.script.add(Round(text("Half an answer"), Hold("middle"), text(" and the rest")))
    session_id, run_id = await chat_of(user)
    await waiting.event(run_id, "message.delta")
    return session_id, run_id


async def html_of(client, path):
    answer = await client.get(path)
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


# Who may


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


# A conversation


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


async def test_send_puts_a_message_in_line_behind_an_active_turn(as_alice, alice, model):
    session, run = await held_chat_of(alice, model)
    await as_alice.post(f"/chat/{session}/send/", {"text": "For later\r\nin two lines"})
    page = await html_of(as_alice, f"/chat/{session}/")
    assert "For later\nin two lines" in page
    assert re.search(r'class="queued".*Waits for its turn', page, re.DOTALL)
    queued = await Run.objects.exclude(id=run).aget()
    await as_alice.post(f"/chat/{session}/runs/{queued.id}/cancel/")
    await waiting.status(queued.id, "cancelled")
    await waiting.status(run, "running")


async def test_the_first_paint_says_where_to_follow_on_and_what_is_pending(as_alice, alice, model):
    session, run = await held_chat_of(alice, model)
    page = await html_of(as_alice, f"/chat/{session}/")
    seen = re.search(rf'data-run="{run}" data-seq="(\d+)"', page)
    assert seen
    assert int(seen[1]) >= 3
    assert 'data-cancellation-pending="false" data-cancellation-revision="0"' in page
    assert '<div class="plain">Half an answer</div>' in page
    assert re.search(r'id="stop"[^>]*>Stop<', page)
    assert not re.search(r'id="stop"[^>]*(hidden|disabled)', page)

    answer = await as_alice.post(f"/chat/{session}/stop/")
    assert answer.headers["Location"] == f"/chat/{session}/"
    await waiting.status(run, "cancelled")
    page = await html_of(as_alice, f"/chat/{session}/")
    assert 'data-cancellation-pending="false" data-cancellation-revision="2"' in page
    assert re.search(r'id="stop"[^>]* hidden', page)
    assert re.search(r"Half an answer.*Stopped", page, re.DOTALL)


async def test_a_pending_cancel_disables_stop_in_the_html(as_alice, alice, model, settings):
    settings.RUNS_CANCEL_GRACE = 5
    model.script.add(call("slow_sync", seconds=3))
    session, run = await chat_of(alice)
    await waiting.event(run, "tool.started")
    await as_alice.post(f"/chat/{session}/stop/")
    page = await html_of(as_alice, f"/chat/{session}/")
    assert 'data-cancellation-pending="true" data-cancellation-revision="1"' in page
    assert re.search(r'id="stop"[^>]* disabled aria-busy="true"', page)
    assert "Stopping…" in page
    await waiting.status(run, "cancelled", 20)


async def test_one_turn_is_rendered_as_the_page_renders_it(as_alice, alice, model):
    model.script.add(say("A **bold** answer."))
    session, run = await chat_of(alice)
    await waiting.status(run, "completed")
    page = await html_of(as_alice, f"/chat/{session}/")
    turn = await html_of(as_alice, f"/chat/{session}/messages/?run={run}")
    assert "<strong>bold</strong>" in turn
    token = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
    assert token.sub("", turn).strip() in token.sub("", page)


def asks(*questions):
    """Build a graph that asks these, one after the other, and says what it was given."""

    def ask(state):
        return {"messages": [("ai", repr([interrupt(question) for question in questions]))]}

    def build():
        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        graph.add_edge("ask", END)
        return graph

    return build


async def field_of(client, session, question):
    """The name of the form field for the answer, once the page asks this."""
    asked = re.compile(rf'{re.escape(question)}</p>.*?<button class="button" name="([^"]+)"', re.DOTALL)
    page = f"/chat/{session}/"

    async def name():
        found = asked.search(await html_of(client, page))
        return found and found[1]

    return await eventually(name)


@pytest.mark.parametrize(
    "path",
    [
        "/chat/{session}/?show=all",
        "/chat/{session}/messages/",
        "/api/sessions/{session}/history/?render=html",
    ],
)
async def test_nothing_more_is_rendered_for_who_has_left(as_alice, alice, monkeypatch, path):
    begun, go_on = [], threading.Event()

    def slowly(text):
        begun.append(text)
        go_on.wait(20)
        return text

    seed = [HumanMessage("How?"), AIMessage("So.")] * 5
    run = await in_thread(
        operations.start_session, alice, "Go on", agent="assistant", seed=seed, origin=Origin.CHAT
    )
    await waiting.status(run["id"], "completed")
    monkeypatch.setattr(rendering, "MAX_CHARACTERS", 1)  # each text is a piece of its own
    monkeypatch.setattr(rendering, "render_markdown", slowly)
    cookie = f"sessionid={as_alice.cookies['sessionid'].value}"
    http = Http("GET", path.format(session=run["session"]), None, {"cookie": cookie})
    await http.send_input({"type": "http.request", "body": b""})
    await eventually(lambda: begun)
    await http.disconnect()
    go_on.set()
    assert await rendering.render_all(["later"]) == ["later"]
    assert len(begun) == 2


async def test_of_a_long_conversation_the_page_shows_the_older_messages_as_they_are(
    as_alice, alice, model, monkeypatch
):
    model.script.add(say("A **bold** answer."))
    seed = [HumanMessage("How?"), AIMessage("**Once** upon <a> time.")]
    run = await in_thread(
        operations.start_session, alice, "Go on", agent="assistant", seed=seed, origin=Origin.CHAT
    )
    await waiting.status(run["id"], "completed")
    path = f"/chat/{run['session']}/?show=all"
    assert "<strong>Once</strong>" in await html_of(as_alice, path)
    monkeypatch.setattr(rendering, "MAX_TOTAL", 20)
    page = await html_of(as_alice, path)
    assert "<pre>**Once** upon &lt;a&gt; time.</pre>" in page
    assert "<strong>bold</strong>" in page


async def test_a_choice_goes_back_to_the_graph_as_it_was_offered(as_alice, alice, serve, engine):
    serve(asks({"question": "How many?", "options": [1, 2, 3]}))
    session, run = await chat_of(alice)
    field = await field_of(as_alice, session, "How many?")
    page = await html_of(as_alice, f"/chat/{session}/")
    assert f'<button class="button" name="{field}" value="2">2</button>' in page
    await as_alice.post(f"/chat/{session}/runs/{run}/answer/", {field: "2"})
    await waiting.status(run, "completed")
    history = await operations.history(alice, session)
    assert history["messages"][-1]["text"] == "[2]"


async def test_the_form_of_one_question_does_not_answer_the_next(as_alice, alice, serve, engine):
    """Two tabs show the first question, and both send their form; the run asks again in between."""
    first, second = "Send the draft?", "Delete all data?"
    serve(asks(*({"question": question, "options": ["yes", "no"]} for question in (first, second))))
    session, run = await chat_of(alice)
    path = f"/chat/{session}/runs/{run}/answer/"
    stale = {await field_of(as_alice, session, first): "yes"}
    assert (await as_alice.post(path, stale)).status_code == 302
    field = await field_of(as_alice, session, second)

    refused = await as_alice.post(path, stale, headers={"accept": "application/json"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_waiting")
    assert (await waiting.status(run, "waiting")).answers is None
    await as_alice.post(path, {field: "no"})
    await waiting.status(run, "completed")
    history = await operations.history(alice, session)
    assert history["messages"][-1]["text"] == "['yes', 'no']"


async def test_a_form_that_is_incomplete_comes_back_with_what_was_typed(as_alice, alice, serve, engine):
    serve(asks({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}))
    session, run = await chat_of(alice)
    await waiting.status(run, "waiting")
    path = f"/chat/{session}/runs/{run}/answer/"
    typed = {"answer-1-0-0-0-0": "Some <words>", "answer-1-0-0-0-1": "many"}

    page = await as_alice.post(path, typed)
    assert page.status_code == 400
    html = page.content.decode()
    assert 'value="Some &lt;words&gt;"' in html
    assert "This must be a whole number." in html
    told = await as_alice.post(path, typed, headers={"accept": "application/json"})
    assert told.json()["error"]["fields"] == {"answer-1-0-0-0-1": "This must be a whole number."}
    assert (await waiting.status(run, "waiting")).answers is None


async def test_a_refused_answer_is_shown_again_with_the_reason(as_alice, alice, serve, engine):
    def build():
        def ask(state):
            if (given := interrupt("Which one?")) != "this":
                raise ValueError("There is no <such> one.")
            return {"messages": [("ai", given)]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        graph.add_edge("ask", END)
        return graph

    serve(build)
    session, run = await chat_of(alice)
    await waiting.status(run, "waiting")
    assert (await as_alice.post(f"/chat/{session}/runs/{run}/answer/", {"answer-1-0-0-0-0": "that"})).url
    await waiting.until(Run.objects.filter(id=run, claim=2, status="waiting").exists)
    page = await html_of(as_alice, f"/chat/{session}/")
    assert "The agent did not accept the answer: There is no &lt;such&gt; one." in page
    assert re.search(r'name="answer-2-0-0-0-0"[^>]*>\s*that</textarea>', page)
    await as_alice.post(f"/chat/{session}/runs/{run}/answer/", {"answer-2-0-0-0-0": "this"})
    await waiting.status(run, "completed")


async def test_what_anybody_wrote_is_text_on_the_page(as_alice, alice, model):
    model.script.add(call("boom", message=HOSTILE), say(f"{HOSTILE}\n\n[link](javascript:alert(3))"))
    session, run = await chat_of(alice, HOSTILE)
    await waiting.status(run, "completed")
    await in_thread(operations.rename_session, alice, session, HOSTILE[:100])
    page = await html_of(as_alice, f"/chat/{session}/")
    scripts = re.findall(r"<script[^>]*>", page)
    assert len(scripts) == 1
    assert "src=" in scripts[0]
    assert not re.search(r"<img|href=.javascript:", page)
    assert page.count(escape("<script>alert(1)</script>")) >= 4
    assert "{{7*7}}" in page


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


# The account


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


# Text on its way


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("", ""),
        ("One line", ""),
        ("One\n\nTwo", "One\n\n"),
        ("One\n \nTwo\n\nThree", "One\n \nTwo\n\n"),
        ("One\n\n```py\na\n\nb", "One\n\n"),
        ("```\na\n\nb\n```\n\nTwo", "```\na\n\nb\n```\n\n"),
        ("~~~\n```\n\nb", ""),
        ("````\n```\n\nb", ""),
        ("\U0001f6a2\n\nTwo", "\U0001f6a2\n\n"),
    ],
)
def test_a_streaming_text_is_rendered_up_to_its_last_whole_paragraph(text, head):
    parts = settled(text)
    assert (parts.head, parts.head + parts.tail) == (head, text)
    assert parts.length == len(head) + head.count("\U0001f6a2")


# All pages


def test_no_template_has_anything_inline():
    """The policy forbids inline script and style; a template that has some would break for everybody."""
    for path in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        if "admin" in path.parts:
            continue
        markup = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", markup), path
        assert not re.search(r"""(?:src|href)=["']https?:""", markup), path


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "status"), [("/login/", 200), ("/nothing/here/", 404)])
def test_every_page_says_its_language(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert '<html lang="en">' in answer.content.decode()


@pytest.mark.django_db
def test_a_browser_finds_the_icon_where_it_looks_by_itself(client):
    answer = client.get("/favicon.ico", follow=True)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "image/svg+xml"


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_while_the_database_is_unavailable_a_page_says_so(as_alice, monkeypatch, accept, caplog):
    def unavailable(*args, **options):
        raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr("chat.pages.session_list.read", unavailable)
    answer = await as_alice.get("/chat/list/", headers={"accept": accept})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["Content-Type"].startswith(accept)
    assert "The database does not answer." in answer.content.decode()
    assert not [record for record in caplog.records if record.exc_info]
