"""The page of a conversation, and the questions that are asked on it."""

import re
import threading

import pytest
from django.utils.html import escape
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from chat import rendering
from chat.templatetags.transcript import settled
from runs import operations, operators
from runs.foundation.database import in_thread
from runs.models import Run
from runs.states import Origin
from tests.chat.live import Http, eventually
from tests.chat.pages.browser import chat_of, held_chat_of, html_of
from tests.fakes import call, say
from tests.runs import waiting

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> {{7*7}} {% now 'Y' %} </script>"


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


@pytest.mark.parametrize(
    ("cancelled_by", "said"),
    [
        ("user", r">Stopped\. Something it started may still be at work\.<"),
        ("operator", r">Stopped by an operator: Why\..*>Something it started may still be at work\.<"),
    ],
)
async def test_a_stopped_turn_says_that_something_may_still_be_at_work(
    as_alice, alice, olivia, model, cancelled_by, said
):
    session, run = await held_chat_of(alice, model)
    if cancelled_by == "user":
        await in_thread(operations.cancel_run, alice, run)
    else:
        await in_thread(operators.cancel, olivia, run, "Why.")
    await waiting.status(run, "cancelled")
    assert "still be at work" not in await html_of(as_alice, f"/chat/{session}/")

    await Run.objects.filter(id=run).aupdate(stragglers=1)

    page = await html_of(as_alice, f"/chat/{session}/")
    assert re.search(said, page, re.DOTALL)
    assert page.count("Stopped") == 1


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


async def test_work_is_folded_away_and_the_answer_is_not(as_alice, alice, model, serve):
    async def route(state):
        await model.ainvoke(state["messages"])

    def build():
        graph = StateGraph(MessagesState)
        graph.add_node("route", route)
        graph.add_node("reply", lambda state: {"messages": [("ai", "The answer.")]})
        graph.add_edge(START, "route")
        graph.add_edge("route", "reply")
        return graph

    serve(build)
    model.script.add(say("to the left"))
    session, run = await chat_of(alice)
    await waiting.status(run, "completed")
    page = await html_of(as_alice, f"/chat/{session}/")
    work, answer = re.findall(r"<article .*?</article>", page, re.DOTALL)[1:3]
    assert 'data-audience="work"' in work
    assert re.search(r'<details class="work"[^>]*>(?!.* open).*to the left.*</details>', work, re.DOTALL)
    assert "<details" not in answer
    assert "The answer." in answer


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
