"""The pages of runs, sessions and workers show all there is to know."""

import re
from urllib.parse import parse_qsl

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils import timezone

from runs import operations, operators
from runs.models import Run, Worker
from runs.states import RunStatus
from tests.admin.reading import at, page, runs_listed, words_of
from tests.admin.rows import a_call, a_run, a_worker, log, open_session, running_run, session_of


def test_a_runs_page_shows_all_there_is_to_know(console, alice, olivia):
    worker = a_worker(active_runs=7)
    run = running_run(alice, worker)
    log(run, "message.started", message="m1", role="assistant", node="model", namespace=[])
    log(
        run,
        "message.completed",
        message="m1",
        role="assistant",
        text="I look",
        tool_calls=[],
        usage=None,
        status="complete",
    )
    a_call(run, name="weather", args={"city": "Rome"}, status="running")
    operators.cancel(olivia, run.id, "it goes round in circles")
    words = words_of(page(console, "run", run.id))
    for part in (
        "In line",
        "LLM call",
        "weather",
        "Cancel (operator)",
        "Rome",
        "it goes round in circles",
        "pending",
        f"{worker} State beating",
        "Runs in hand 7",
        "Sendable",
        "effect not known yet",
        "tool.started",
        "hello",
    ):
        assert part in words, part
    content = page(console, "run", run.id).content.decode()
    assert {"queue", "llm", "tool", "cancel"} <= set(re.findall(r'<tr class="bar-(\w+)">', content))
    assert "<script" not in content.split('id="run-live"')[1].split("</main>")[0]


def test_a_queued_runs_page_says_what_it_waits_for(console, alice):
    session = open_session(alice)
    ahead = running_run(alice, a_worker(), session)
    queued = a_run(alice, RunStatus.QUEUED, session)
    behind = page(console, "run", queued)
    assert f"It waits behind the run {str(ahead.id)[:8]} , which is running." in words_of(behind)
    assert reverse("admin:runs_run_change", args=[ahead.id]) in behind.content.decode()
    at(ahead, status=RunStatus.INTERRUPTED, finished_at=timezone.now())
    assert "the interrupted run" in words_of(page(console, "run", queued))
    assert "undecided" in words_of(page(console, "run", ahead.id))
    operators.dismiss(get_user_model().objects.get(username="olivia"), ahead.id, "why")
    assert "No worker has taken it yet." in words_of(page(console, "run", queued))
    Worker.objects.all().delete()
    assert "No worker has taken it, and none is there that takes turns." in words_of(
        page(console, "run", queued)
    )


@pytest.mark.parametrize("command", ["resume", "retry"])
def test_a_run_that_went_on_in_another_leads_to_it(console, alice, command):
    run = a_run(alice, RunStatus.INTERRUPTED)
    following = getattr(operations, command)(alice, run)["id"]
    words = words_of(page(console, "run", run))
    assert f"{'Resumed' if command == 'resume' else 'Retried'} in {following}" in words
    assert run in words_of(page(console, "run", following))


def test_the_log_is_paged_newest_first(console, alice):
    run = running_run(alice, a_worker())
    for number in range(130):
        log(run, "graph.custom", namespace=[], data=number)
    first = page(console, "run", run.id)
    seqs = re.findall(r"<tr><td>(\d+)</td>", first.content.decode())
    assert seqs == [str(number) for number in range(131, 81, -1)]
    older = re.search(r"\?before=(\d+)#log\">Older", first.content.decode())[1]
    second = page(console, "run", run.id, before=older).content.decode()
    assert re.findall(r"<tr><td>(\d+)</td>", second)[0] == "81"
    assert f"/live/?before={older}" in second
    for odd in ("x", "-1", "0", "99999999999999", "\u0663"):
        assert page(console, "run", run.id, before=odd).status_code == 200


async def test_the_checkpoint_is_shown_as_the_graph_has_it(engine, model, alice, olivia, console):
    from runs.foundation.database import in_thread
    from tests.chat.live import eventually
    from tests.fakes import call, say

    model.script.add(call("mark", x="a"), say("It is three."))
    session = await in_thread(open_session, alice)
    run = (await in_thread(operations.start_turn, alice, session, "What is it?"))["id"]

    async def is_over():
        return (await Run.objects.aget(id=run)).status == RunStatus.COMPLETED

    await eventually(is_over)
    words = words_of(await sync_to_async(page)(console, "run", run))
    assert "Messages 4 Pending nothing Orphans none Sendable yes" in words
    assert "It is three." in words
    history = words_of(await sync_to_async(page)(console, "session", session))
    assert "user" in history
    assert "It is three." in history
    assert "calls mark completed" in history


def test_an_orphan_in_the_checkpoint_is_named():
    from langchain_core.messages import AIMessage, HumanMessage

    from runs.reading.inspection import examine

    asked = AIMessage("", id="a", tool_calls=[{"id": "c1", "name": "pay", "args": {}}])
    found = examine([HumanMessage("go", id="u"), asked], ["tools"])
    assert [(call.name, call.id) for call in found.orphans] == [("pay", "c1")]
    assert (found.is_sendable, found.pending) == (False, ["tools"])
    assert found.faults[0] == "1 call without a result"
    assert examine([HumanMessage("go", id="u"), AIMessage("done", id="b")]).is_sendable


def test_an_error_of_a_tool_in_the_checkpoint_is_shown_masked():
    from langchain_core.messages import AIMessage, ToolMessage

    from runs.reading.inspection import examine

    asked = AIMessage("", id="a", tool_calls=[{"id": "c1", "name": "pay", "args": {}}])
    failed = ToolMessage("no: token=abc", tool_call_id="c1", id="t", status="error")
    assert examine([asked, failed]).messages[1].text == "no: token=***"


def test_a_checkpoint_that_cannot_be_read_does_not_hide_the_run(console, alice, serve):
    def broken():
        raise RuntimeError("no graph today")

    run = a_run(alice)
    serve(broken)
    words = words_of(page(console, "run", run))
    assert "RuntimeError: no graph today" in words
    assert words_of(page(console, "session", session_of(run).id))


@pytest.mark.parametrize("name", ["run", "session", "worker", "cancellation", "auditentry"])
@pytest.mark.parametrize(
    "key", ["5c5b2f6e-7d0e-4a53-9d0b-000000000000", "no-uuid", "99999999999999999999999"]
)
def test_what_does_not_exist_is_not_found(console, name, key):
    assert page(console, name, key).status_code == 404


def test_a_worker_that_is_gone_says_so(console, alice):
    worker = a_worker(gone=True)
    run = running_run(alice, worker)
    words = words_of(page(console, "worker", worker.id))
    assert "gone" in words
    assert str(run.id)[:8] in words
    Worker.objects.all().delete()
    assert "Its worker is gone." in words_of(page(console, "run", run.id))


def test_the_worker_of_a_run_is_lost_once_its_process_is_gone(console, alice):
    """Its last heartbeat may be a moment old."""
    run = running_run(alice, a_worker(gone=True))
    assert "running worker lost" in words_of(console.get(reverse("admin:runs_run_changelist")))
    assert "worker lost" in words_of(page(console, "run", run.id))


def test_a_workers_page_leads_to_its_runs_in_list_words(console, alice):
    worker = a_worker(stragglers=1)
    mine, given_up = running_run(alice, worker), running_run(alice, worker)
    running_run(alice, a_worker())
    at(given_up, status=RunStatus.CANCELLED, finished_at=timezone.now())
    a_call(given_up, effect="unknown")
    content = page(console, "worker", worker.id).content.decode()
    found = []
    for link in re.findall(r'href="/admin/runs/run/\?([^"]*)"', content):
        found.append(runs_listed(console, **dict(parse_qsl(link.replace("&amp;", "&")))))
    assert found == [[str(mine.id)], [str(given_up.id)]]
