"""Deleting sessions and accounts in the admin: what is active ends first, and nothing stays but the books."""

import sqlite3
from contextlib import closing

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.urls import reverse

from chat.access import tokens
from chat.models import ApiToken
from runs import operations
from runs.foundation.database import in_thread
from runs.models import AuditEntry, Cancellation, DailyTotal, Leftover, Run, RunEvent, Session, ToolCall
from runs.recovery import deletion
from runs.states import RunStatus
from tests.admin.conftest import logged_in
from tests.admin.rows import a_call, a_run, a_worker, open_session, running_run, session_of
from tests.admin.test_pages import words_of
from tests.chat.live import eventually
from tests.fakes import Hold, Round, call, say, text

SURE = {"confirmed": "yes", "reason": "asked to"}


def checkpoint_rows(session) -> int:
    """How many rows the checkpoints have of a session."""
    thread = str(session)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT (SELECT count(*) FROM checkpoints WHERE thread_id = %(thread)s)"
                " + (SELECT count(*) FROM checkpoint_writes WHERE thread_id = %(thread)s)"
                " + (SELECT count(*) FROM checkpoint_blobs WHERE thread_id = %(thread)s)",
                {"thread": thread},
            )
            return cursor.fetchone()[0]
    with closing(sqlite3.connect(settings.CHECKPOINT_PATH)) as file:
        return sum(
            file.execute(f"SELECT count(*) FROM {table} WHERE thread_id = ?", [thread]).fetchone()[0]
            for table in ("checkpoints", "writes")
        )


def rows_left() -> dict[str, int]:
    models = (Session, Run, RunEvent, ToolCall, Cancellation, Leftover)
    return {model.__name__: model.objects.count() for model in models if model.objects.exists()}


def delete(browser, name: str, key, **body):
    return browser.post(reverse(f"admin:{name}_delete", args=[key]), SURE | body, follow=True)


def delete_selected(browser, name: str, keys, **body):
    chosen = {"action": "delete_selected", "_selected_action": [str(key) for key in keys]}
    return browser.post(reverse(f"admin:{name}_changelist"), chosen | SURE | body, follow=True)


async def a_turn_in_mid_answer(model, user):
    """A session with a finished turn that called a tool, and one in mid-answer; its id."""
    session = await in_thread(open_session, user)
    model.script.add(call("mark", x="a"), say("Three."), Round(text("Now "), Hold("middle"), text("then")))
    first = (await in_thread(operations.start_turn, user, session, "first"))["id"]
    await is_now(first, RunStatus.COMPLETED)
    second = (await in_thread(operations.start_turn, user, session, "second"))["id"]
    await eventually(lambda: RunEvent.objects.filter(run=second, type="message.started").aexists())
    return session


async def is_now(run, status):
    async def has_come():
        return (await Run.objects.aget(id=run)).status == status

    await eventually(has_come)


async def test_deleting_a_session_ends_its_turn_and_leaves_nothing_behind(engine, model, alice, console):
    session = await a_turn_in_mid_answer(model, alice)
    assert await in_thread(checkpoint_rows, session) > 0
    asked = await sync_to_async(console.get)(reverse("admin:runs_session_delete", args=[session]))
    assert "of alice, 2 runs with logs and checkpoints. Cancelled first: 1 active run." in words_of(asked)
    answer = await sync_to_async(delete)(console, "runs_session", session)
    assert "Deleted 1 session." in answer.content.decode()
    assert await in_thread(rows_left) == {}
    assert await in_thread(checkpoint_rows, session) == 0
    assert engine.executions == {}
    entry = await AuditEntry.objects.aget(action="delete_session")
    assert (entry.actor, entry.target, entry.reason) == ("olivia", session, "asked to")
    totals = {total.status: total.runs async for total in DailyTotal.objects.all()}
    assert totals == {"completed": 1, "cancelled": 1}
    model.script.open_all()
    assert await in_thread(checkpoint_rows, session) == 0


async def test_deleting_a_user_ends_what_runs_and_takes_all_sessions_along(
    engine, model, alice, bob, console
):
    session = await a_turn_in_mid_answer(model, alice)
    kept = await in_thread(a_run, bob, RunStatus.COMPLETED)
    await in_thread(tokens.create_token, alice)
    asked = await sync_to_async(console.get)(reverse("admin:auth_user_delete", args=[alice.pk]))
    assert "1 session with all runs, logs and checkpoints" in words_of(asked)
    answer = await sync_to_async(delete)(console, "auth_user", alice.pk)
    assert "Deleted 1 user." in answer.content.decode()
    assert not await get_user_model().objects.filter(pk=alice.pk).aexists()
    assert [str(run.id) async for run in Run.objects.all()] == [kept]
    assert await in_thread(checkpoint_rows, session) == 0
    assert not await ApiToken.objects.aexists()
    entries = [(entry.action, entry.target) async for entry in AuditEntry.objects.order_by("id")]
    assert [action for action, _ in entries] == ["delete_session", "delete_user"]
    assert entries[1][1] == "alice"


def test_sessions_and_users_are_deleted_in_bulk(console, alice, bob):
    running = running_run(alice, a_worker())
    a_call(running)
    sessions = [session_of(a_run(alice)).id, session_of(a_run(bob, RunStatus.WAITING)).id, running.session_id]
    kept = session_of(a_run(bob)).id
    answer = delete_selected(console, "runs_session", sessions)
    assert "Deleted 3 sessions." in answer.content.decode()
    assert list(Session.objects.values_list("id", flat=True)) == [kept]
    answer = delete_selected(console, "auth_user", [alice.pk, bob.pk])
    assert "Deleted 2 users." in answer.content.decode()
    assert rows_left() == {}
    assert list(get_user_model().objects.values_list("username", flat=True)) == ["olivia"]


def test_a_user_with_many_sessions_goes_in_many_small_steps(console, alice, monkeypatch):
    monkeypatch.setattr(deletion, "_BATCH", 7)
    Session.objects.bulk_create(Session(owner=alice, agent="assistant") for _ in range(60))
    assert delete(console, "auth_user", alice.pk).status_code == 200
    assert rows_left() == {}
    assert AuditEntry.objects.get(action="delete_user").details["sessions"] == 60


def test_a_deletion_that_broke_off_can_be_done_again(console, alice, monkeypatch):
    sessions = [session_of(a_run(alice)).id for _ in range(3)]
    delete_rows = deletion._delete_rows

    def break_at_the_second(session_id, *args):
        if Session.objects.count() == 2:
            raise RuntimeError("the power failed")
        delete_rows(session_id, *args)

    monkeypatch.setattr(deletion, "_delete_rows", break_at_the_second)
    with pytest.raises(RuntimeError):
        delete(console, "auth_user", alice.pk)
    alice.refresh_from_db()
    assert (alice.is_active, Session.objects.count()) == (False, len(sessions) - 1)
    monkeypatch.setattr(deletion, "_delete_rows", delete_rows)
    delete(console, "auth_user", alice.pk)
    assert not get_user_model().objects.filter(username="alice").exists()
    assert rows_left() == {}


def test_a_session_that_is_opened_during_the_deletion_is_deleted_too(console, alice, monkeypatch):
    session_of(a_run(alice))
    delete_session = deletion._delete_session

    async def and_open_another(session_id, *args):
        await delete_session(session_id, *args)
        if not await AuditEntry.objects.filter(action="delete_session").acount() > 1:
            await in_thread(a_run, alice)

    monkeypatch.setattr(deletion, "_delete_session", and_open_another)
    delete(console, "auth_user", alice.pk)
    assert rows_left() == {}
    assert not get_user_model().objects.filter(username="alice").exists()


def test_nothing_is_deleted_without_a_reason_or_twice(console, alice):
    session = session_of(a_run(alice)).id
    asked = console.post(
        reverse("admin:runs_session_delete", args=[session]), {"confirmed": "yes", "reason": " "}
    )
    assert "Say why this has to be done." in words_of(asked)
    # What Django's own page would have sent.
    console.post(reverse("admin:runs_session_delete", args=[session]), {"post": "yes"})
    console.post(reverse("admin:auth_user_delete", args=[alice.pk]), {"post": "yes"})
    assert Session.objects.exists()
    delete(console, "runs_session", session)
    assert delete(console, "runs_session", session).status_code == 404
    assert delete_selected(console, "runs_session", [session]).status_code == 200


def test_a_run_is_not_deleted_by_itself_and_the_page_says_what_is(console, alice):
    run = running_run(alice, a_worker())
    url = reverse("admin:runs_run_delete", args=[run.id])
    words = words_of(console.get(url))
    assert "Only whole sessions are deleted" in words
    assert reverse("admin:runs_session_delete", args=[run.session_id]) in console.get(url).content.decode()
    refused = console.post(url, SURE | {"post": "yes"})
    assert refused.status_code == 403
    assert "Only whole sessions are deleted" in refused.content.decode()
    assert Run.objects.get(id=run.id).status == RunStatus.RUNNING
    delete_selected(console, "runs_run", [run.id])
    assert Run.objects.filter(id=run.id).exists()


@pytest.mark.parametrize("name", ["runs_session", "auth_user"])
def test_deleting_needs_its_permission(staff, alice, name):
    session = session_of(a_run(alice))
    key = session.id if name == "runs_session" else alice.pk
    browser = staff("view_session", "view_run", "view_user")
    assert delete(browser, name, key).status_code == 403
    delete_selected(browser, name, [key])
    assert Session.objects.exists()
    assert not AuditEntry.objects.exists()


def test_an_operator_who_deletes_their_own_account_is_logged_out(transactional_db, olivia, django_user_model):
    other = logged_in(django_user_model.objects.create_superuser("oscar", password="x"))
    oscar = django_user_model.objects.get(username="oscar")
    a_run(oscar)
    response = other.post(reverse("admin:auth_user_delete", args=[oscar.pk]), SURE)
    assert response.status_code == 302
    assert other.get(reverse("admin:index")).status_code == 302
    assert AuditEntry.objects.get(action="delete_user").actor == "oscar"
