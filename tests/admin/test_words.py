"""Who may read what others wrote, and that it is shown as text."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.contrib.auth import get_user_model
from django.urls import reverse
from langgraph.graph import START, MessagesState, StateGraph

from runs import operations, operators
from runs.foundation.database import in_thread
from runs.models import AuditEntry, Cancellation, Run, Session
from runs.states import RunStatus
from tests.admin.reading import page, runs_listed, words_of
from tests.admin.rows import a_call, a_run, a_worker, log, running_run
from tests.fakes.errors import SECRET_TEXT, SECRETS, WORD, Unspeakable
from tests.runs.waiting import terminal

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' {{ 111111|add:222222 }} {% now %}"


def test_without_the_permission_a_page_shows_everything_but_the_words(staff, alice):
    run = running_run(alice, a_worker())
    a_call(run, name="weather", args={"city": "Rome"}, result="sunny")
    browser = staff("view_run", "view_session")
    Session.objects.update(title="hello title")
    for response in (
        page(browser, "run", run.id),
        browser.get(reverse("admin:runs_run_live", args=[run.id])),
        browser.get(reverse("admin:runs_run_checkpoint", args=[run.id])),
        page(browser, "session", run.session_id),
        browser.get(reverse("admin:runs_run_changelist")),
        browser.get(reverse("admin:runs_session_changelist")),
    ):
        content = response.content.decode()
        assert response.status_code == 200
        for word in ("hello", "Rome", "sunny"):
            assert word not in content, content[content.index(word) - 100 :][:200]
    assert "weather" in words_of(page(browser, "run", run.id))
    assert runs_listed(browser, q="hello title") == []
    assert not AuditEntry.objects.exists()


def test_reading_the_chat_of_another_user_is_recorded_once_for_a_while(staff, alice):
    run = running_run(alice, a_worker())
    browser = staff("view_run", "view_session", "read_chats")
    assert "hello" in words_of(page(browser, "run", run.id))
    for _ in range(3):
        browser.get(reverse("admin:runs_run_live", args=[run.id]))
    page(browser, "session", run.session_id)
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target) == ("steve", "read_chat", str(run.session_id))
    assert entry.details == {"owner": "alice"}
    other = running_run(alice, a_worker())
    page(browser, "run", other.id)
    assert AuditEntry.objects.count() == 2


def test_reading_a_chat_again_much_later_is_recorded_again(staff, alice, monkeypatch):
    browser = staff("view_run", "read_chats")
    run = a_run(alice)
    page(browser, "run", run)
    monkeypatch.setattr(operators, "READING_LASTS", timedelta(0))
    page(browser, "run", run)
    assert AuditEntry.objects.count() == 2


def test_ones_own_chats_need_no_permission_and_leave_no_entry(staff):
    browser = staff("view_run", "view_session")
    steve = get_user_model().objects.get(username="steve")
    run = a_run(steve)
    assert "hello" in words_of(page(browser, "run", run))
    assert runs_listed(browser, q="hello") == [run]
    assert not AuditEntry.objects.exists()


def test_what_others_wrote_is_shown_as_text_everywhere(console, alice, olivia):
    alice.username = HOSTILE[:150]
    alice.save()
    run = running_run(alice, a_worker(host=HOSTILE))
    Session.objects.update(title=HOSTILE[:200], agent=HOSTILE[:100])
    Run.objects.update(input=HOSTILE, agent=HOSTILE[:100])
    a_call(run, name=HOSTILE, args={HOSTILE: HOSTILE}, result=HOSTILE, error=HOSTILE, effect="unknown")
    log(
        run,
        "message.completed",
        message=HOSTILE,
        role="assistant",
        text=HOSTILE,
        tool_calls=[],
        status="complete",
    )
    operators.cancel(olivia, run.id, HOSTILE)
    failed = a_run(alice, RunStatus.FAILED)
    Run.objects.filter(id=failed).update(error_message=HOSTILE)
    lists = [
        reverse(f"admin:runs_{name}_changelist")
        for name in ("run", "session", "worker", "cancellation", "auditentry")
    ]
    pages = [
        reverse("admin:runs_run_change", args=[run.id]),
        reverse("admin:runs_run_change", args=[failed]),
        reverse("admin:runs_run_live", args=[run.id]),
        reverse("admin:runs_run_delete", args=[run.id]),
        reverse("admin:runs_session_change", args=[run.session_id]),
        reverse("admin:runs_session_delete", args=[run.session_id]),
        reverse("admin:runs_worker_change", args=[run.worker_id]),
        reverse("admin:runs_cancellation_change", args=[Cancellation.objects.first().id]),
        reverse("admin:runs_auditentry_change", args=[AuditEntry.objects.first().id]),
        reverse("admin:auth_user_delete", args=[alice.id]),
        f"{lists[0]}?{urlencode({'owner': HOSTILE, 'agent': HOSTILE, 'q': HOSTILE})}",
    ]
    seen = 0
    for url in lists + pages:
        content = console.get(url).content.decode()
        assert "<script>alert" not in content, url
        assert "<img src=x" not in content, url
        assert "333333" not in content, url
        seen += content.count("&lt;script&gt;alert(1)")
    assert seen > 30
    chosen = {"action": "cancel", "_selected_action": [str(run.id), failed], "reason": HOSTILE}
    for more in ({}, {"confirmed": "yes"}):
        content = console.post(
            reverse("admin:runs_run_changelist"), chosen | more, follow=True
        ).content.decode()
        assert "<script>alert" not in content


async def test_what_was_raised_is_shown_masked_to_those_who_may_read_chats(engine, alice, serve, staff):
    def build():
        def fail(state):
            raise RuntimeError(SECRET_TEXT)

        graph = StateGraph(MessagesState)
        graph.add_node("fail", fail)
        graph.add_edge(START, "fail")
        return graph

    serve(build)
    session = await in_thread(operations.create_session, alice)
    run = (await in_thread(operations.start_turn, alice, session["id"], "hello"))["id"]
    await terminal(run)
    reader = await in_thread(lambda: staff("view_run", "read_chats", name="steve"))
    other = await in_thread(lambda: staff("view_run", name="sam"))
    for kind in ("change", "live"):
        path = reverse(f"admin:runs_run_{kind}", args=[run])
        shown = (await in_thread(reader.get, path)).content.decode()
        assert f"RuntimeError: {WORD} key ***" in shown
        assert not any(secret in shown for secret in SECRETS)
        hidden = (await in_thread(other.get, path)).content.decode()
        assert "Something went wrong inside the agent" in hidden
        assert WORD not in hidden
        assert "RuntimeError" not in hidden


def test_what_was_raised_is_shown_as_text(console, alice):
    run = a_run(alice, RunStatus.FAILED)
    Run.objects.filter(id=run).update(error_details=HOSTILE)
    shown = page(console, "run", run).content.decode()
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script>alert" not in shown
    assert HOSTILE not in console.get(reverse("admin:runs_run_changelist")).content.decode()


@pytest.mark.parametrize(
    ("error", "wanted"),
    [(Unspeakable(), "Unspeakable"), (RuntimeError(SECRET_TEXT), f"RuntimeError: {WORD} key ***")],
    ids=["without text", "with secrets"],
)
def test_a_checkpoint_that_cannot_be_read_says_why_masked(console, alice, serve, error, wanted):
    def build():
        raise error

    run = a_run(alice, RunStatus.COMPLETED)
    serve(build)
    shown = console.get(reverse("admin:runs_run_checkpoint", args=[run])).content.decode()
    assert wanted in shown
    assert not any(secret in shown for secret in SECRETS)
