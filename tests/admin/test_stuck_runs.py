"""Five ways in which a turn does not end. The operator finds and ends each from the dashboard, by links and
buttons alone. Then the user sees why, an audit entry says who, and the next message works.
"""

import threading
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from runs import operations
from runs.foundation.database import in_thread
from runs.models import AuditEntry, Run, Session, ToolCall, Worker
from runs.states import RunStatus
from tests.admin.browser import Browser
from tests.admin.conftest import logged_in
from tests.admin.rows import a_run, a_worker, running_run
from tests.chat.live import eventually
from tests.fakes import Marks, ScriptedModel, call, plain_graph, say, tools
from tests.runs.servers import servers_of_a_test

WHY = "olivia looked at it"
LONG_AGO = timedelta(minutes=10)


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path / "marks")


@pytest.fixture
def release():
    """Set, it lets the tool ``hang`` return."""
    return threading.Event()


@pytest.fixture
def model(serve, marks, release):
    """The model behind the default agent."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(marks, release)))
    yield scripted
    scripted.script.open_all()


def end_one(olivia, way, run, command, *, seen):
    """From the dashboard by one of its links to the run, give the command; the report."""
    browser = Browser(olivia)
    browser.follow(way)
    browser.follow(str(run.id)[:8])
    for words in seen:
        assert words in browser.words, words
    browser.press(command)
    assert "What will happen" in browser.words
    browser.press(command, reason=WHY)
    assert browser.clicks == 4
    return browser.words


async def is_now(run, status):
    return await Run.objects.filter(id=run.id, status=status).aexists()


def told_to(user, session_id):
    return logged_in(user).get(f"/chat/{session_id}/").content.decode()


async def check_aftermath(alice, run, action, *, told, model):
    """The user's page, the record, and the next message, all after the operator's last click."""
    entry = await AuditEntry.objects.aget(target=str(run.id), action=action)
    assert (entry.actor, entry.reason, entry.details["changed"]) == ("olivia", WHY, True)
    content = await sync_to_async(told_to)(alice, run.session_id)
    for words in told:
        assert words in content, words
    model.script.add(say("Fine again."))
    following = await in_thread(operations.start_turn, alice, run.session_id, "And now?")
    await eventually(lambda: is_now(Run(id=following["id"]), RunStatus.COMPLETED))
    assert "Fine again." in await sync_to_async(told_to)(alice, run.session_id)


@asynccontextmanager
async def hung_turn(model, marks, release, alice):
    """A turn whose tool never returns and heeds nothing, until the end of the block."""
    model.script.add(call("hang"))
    session = await in_thread(operations.create_session, alice)
    started = await in_thread(operations.start_turn, alice, session["id"], "Do it")
    run = Run.objects.filter(id=started["id"])

    async def has_begun():
        return await ToolCall.objects.filter(run__in=run, started_at__isnull=False).aexists()

    await marks.seen("hang started", timeout=60)
    await eventually(has_begun)
    try:
        yield await run.aget()
    finally:
        release.set()
        await marks.seen("hang ended", timeout=60)


async def test_a_run_of_a_frozen_worker_is_force_cancelled(transactional_db, alice, olivia, model):
    """It is there and gives no sign of life: the run is ended without it."""
    silent = await in_thread(lambda: a_worker(heartbeat_at=timezone.now() - LONG_AGO))
    run = await in_thread(running_run, alice, silent)
    report = await sync_to_async(end_one)(
        olivia, "Stuck runs", run, "Force-cancel", seen=["worker lost", "State silent"]
    )
    assert "Force-cancel: It was ended without its worker." in report
    async with servers_of_a_test():
        told = [f"Stopped by an operator: {WHY}"]
        await check_aftermath(alice, run, "force_cancel", told=told, model=model)


async def test_a_run_with_a_tool_that_does_not_return_is_cancelled(
    transactional_db, alice, olivia, model, marks, release, settings
):
    """Its worker lives: a cancel gives the tool up, and says that nobody knows what it did."""
    settings.RUNS_CANCEL_GRACE = 0.1
    async with servers_of_a_test(), hung_turn(model, marks, release, alice) as run:
        report = await sync_to_async(end_one)(
            olivia, "Runs", run, "Cancel", seen=["hang running", "so far", "State beating"]
        )
        assert "Cancel: The cancel was accepted; its worker is told to stop." in report
        await eventually(lambda: is_now(run, RunStatus.CANCELLED))
        told = [f"Stopped by an operator: {WHY}", 'data-effect="unknown"']
        await check_aftermath(alice, run, "cancel", told=told, model=model)
        assert "Unknown effects ! 1" in (await sync_to_async(Browser)(olivia)).words


async def test_a_run_of_a_dead_worker_ends_as_its_accepted_cancel_asked(
    transactional_db, alice, olivia, model
):
    """Whoever has asked for the cancel gets it, and nothing else can come of the run."""
    worker = await in_thread(a_worker)
    run = await in_thread(running_run, alice, worker)
    await in_thread(operations.cancel_run, alice, run.id)
    await Run.objects.filter(id=run.id).aupdate(cancel_requested_at=timezone.now() - LONG_AGO)
    await Worker.objects.filter(id=worker.id).aupdate(boot="an earlier boot")
    report = await sync_to_async(end_one)(
        olivia, "Overdue cancels", run, "Reconcile", seen=["cancel overdue", "worker lost", "State gone"]
    )
    assert "Its worker was lost, so the run was ended: cancelled." in report
    async with servers_of_a_test():
        await check_aftermath(alice, run, "reconcile", told=['data-mark="stopped">Stopped<'], model=model)


async def test_a_run_interrupted_by_a_crash_is_dismissed(
    transactional_db, alice, olivia, model, marks, release
):
    """The server died in the middle of a tool; the next one cannot know what it did, and asks."""
    async with servers_of_a_test() as servers, hung_turn(model, marks, release, alice) as run:
        await servers.restart()
        await eventually(lambda: is_now(run, RunStatus.INTERRUPTED))
        report = await sync_to_async(end_one)(
            olivia,
            "Interrupted turns",
            run,
            "Dismiss",
            seen=["undecided", "effect unknown", "Orphans hang", "no result"],
        )
        assert "Dismiss: It was dismissed; its session is free again." in report
        told = [f"Interrupted, then dismissed by an operator: {WHY}", 'data-effect="unknown"']
        await check_aftermath(alice, run, "dismiss", told=told, model=model)


async def test_a_queue_without_a_worker_is_cancelled_at_once(transactional_db, alice, olivia, model):
    """There is no worker: the dashboard says so, and what waits is taken out of the line in one go."""
    first = await in_thread(a_run, alice)
    run = await Run.objects.aget(id=first)
    second = await in_thread(a_run, alice, RunStatus.QUEUED, str(run.session_id))
    await Session.objects.aupdate(updated_at=timezone.now() - LONG_AGO)

    def end_all():
        browser = Browser(olivia)
        assert "Turns nobody takes ! 2" in browser.words
        assert "There is none that could: start one" in browser.words
        browser.follow("Turns nobody takes")
        browser.follow(first[:8])
        assert "No worker has taken it, and none is there that takes turns." in browser.words
        browser.press("Reconcile")
        assert "Nothing changes: no worker is there" in browser.words
        browser.open("/admin/runs/run/?attention=untaken")
        browser.give_to_all("cancel")
        browser.press("Cancel", reason=WHY)
        return browser.words

    assert "2 of 2 runs were changed." in await sync_to_async(end_all)()
    assert await AuditEntry.objects.filter(target=second, reason=WHY).aexists()
    async with servers_of_a_test():
        told = [f"Stopped by an operator: {WHY}"]
        await check_aftermath(alice, run, "cancel", told=told, model=model)
