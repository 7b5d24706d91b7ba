"""The lists, with those that need attention first, and the pages of runs, sessions and workers."""

import re
from datetime import timedelta
from urllib.parse import parse_qsl, urlencode

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from runs import operations, operators
from runs.admin.lists import paging
from runs.models import AuditEntry, Cancellation, Run, Session, Worker
from runs.states import RunStatus
from tests.admin.rows import a_call, a_run, a_worker, log, open_session, running_run, session_of, stuck_run

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' {{ 111111|add:222222 }} {% now %}"


def words_of(response) -> str:
    """What somebody reads on the page, without the site's frame."""
    assert response.status_code == 200, (response.status_code, response.headers)
    content = response.content.decode().split('id="content-start"')[-1]
    return " ".join(re.sub(r"<[^>]*>", " ", content).split())


def runs_listed(browser, **query) -> list[str]:
    """The ids of the runs on a page of the list, in its order."""
    response = browser.get(f"{reverse('admin:runs_run_changelist')}?{urlencode(query)}")
    assert response.status_code == 200, (response.status_code, response.headers)
    return re.findall(
        r'field-identifier"><a href="/admin/runs/run/([0-9a-f-]{36})/', response.content.decode()
    )


def page(browser, name: str, key, **query):
    return browser.get(f"{reverse(f'admin:runs_{name}_change', args=[key])}?{urlencode(query)}")


def at(run, **fields):
    """Say when things happened to a run."""
    Run.objects.filter(id=getattr(run, "id", run)).update(**fields)


# Lists


def test_runs_that_need_attention_come_first_then_the_newest(console, alice):
    now = timezone.now()
    older = a_run(alice, RunStatus.COMPLETED)
    newer = a_run(alice, RunStatus.COMPLETED)
    silent = stuck_run(alice, seconds=200)
    longest = stuck_run(alice, seconds=900)
    lost = running_run(alice, a_worker(heartbeat_at=now - timedelta(hours=1)))
    at(older, created_at=now - timedelta(hours=2))
    at(newer, created_at=now - timedelta(hours=1))
    assert runs_listed(console) == [str(longest.id), str(silent.id), str(lost.id), newer, older]
    by_age = runs_listed(console, o="3")
    assert by_age[:2] == [older, newer]
    assert runs_listed(console, o="-3") == by_age[::-1]


def test_a_turn_that_no_worker_takes_needs_attention_too(console, alice):
    untaken, fresh = a_run(alice), a_run(alice)
    for run in (untaken, fresh):
        a_run(alice, RunStatus.QUEUED, str(session_of(run).id))
    newest = a_run(alice, RunStatus.COMPLETED)
    Session.objects.filter(runs=untaken).update(updated_at=timezone.now() - timedelta(minutes=1))
    at(untaken, last_event_at=timezone.now() - timedelta(minutes=1))
    listed = runs_listed(console)
    assert listed[0] == untaken
    assert listed[2] == newest, "both turns of its queue come first"
    assert set(runs_listed(console, attention="untaken")) == set(listed[:2])
    assert words_of(console.get(reverse("admin:runs_run_changelist"))).count("queued not taken") == 2


def test_runs_that_need_attention_are_listed_once_over_all_pages(console, alice, monkeypatch):
    monkeypatch.setattr("runs.admin.pages.runs.RunAdmin.list_per_page", 3)
    hanging = [str(stuck_run(alice, seconds=1000 - n).id) for n in range(4)]
    others = [a_run(alice) for _ in range(4)]
    pages = [runs_listed(console, p=number) for number in (1, 2, 3)]
    assert [len(one) for one in pages] == [3, 3, 2]
    assert [*pages[0], pages[1][0]] == hanging
    assert sorted([*pages[1][1:], *pages[2]]) == sorted(others)


def test_the_list_is_filtered_by_all_it_shows(console, alice, bob):
    worker, other = a_worker(), a_worker()
    mine = stuck_run(alice, worker)
    a_call(mine, effect="unknown")
    at(mine, agent="writer", input_tokens=1500, cancel_requested_at=timezone.now() - timedelta(minutes=5))
    his = running_run(bob, other)
    done = a_run(bob, RunStatus.COMPLETED)
    at(done, created_at=timezone.now() - timedelta(days=9), finished_at=timezone.now() - timedelta(days=9))
    expected = {
        ("status__exact", "running"): {str(mine.id), str(his.id)},
        ("status__exact", "active"): {str(mine.id), str(his.id)},
        ("status__exact", "completed"): {done},
        ("owner", "alice"): {str(mine.id)},
        ("owner", "ali"): set(),
        ("session", str(his.session_id)): {str(his.id)},
        ("agent", "writer"): {str(mine.id)},
        ("worker", str(other.id)): {str(his.id)},
        ("worker", "none"): set(),
        ("age", "hour"): {str(mine.id), str(his.id)},
        ("age", "older"): {done},
        ("last_event", "minute"): {str(his.id)},
        ("last_event", "silent_minute"): {str(mine.id)},
        ("tokens", "1000"): {str(mine.id)},
        ("tokens", "unknown"): {str(his.id), done},
        ("attention", "stuck"): {str(mine.id)},
        ("attention", "cancel_overdue"): {str(mine.id)},
        ("attention", "effect_unknown"): {str(mine.id)},
        ("attention", "worker_lost"): set(),
        ("attention", "any"): {str(mine.id)},
    }
    assert {query: set(runs_listed(console, **dict([query]))) for query in expected} == expected


def test_runs_are_found_by_ids_owner_and_title(console, alice, bob):
    run = a_run(alice, text="Plans for Rome")
    a_run(bob, text="Something else")
    session = session_of(run)
    for term in (run, run[:8], str(session.id), str(session.id).replace("-", "")[:12], "alic", "for rome"):
        assert runs_listed(console, q=term) == [run], term
    assert runs_listed(console, q="nobody") == []


@pytest.mark.parametrize(
    "query",
    [
        "q=%00",
        "owner=%00",
        "agent=%00",
        "session=1",
        "worker=x",
        "status__exact=x",
        "p=0",
        "p=999",
        "o=99",
        "e=1",
    ],
)
@pytest.mark.parametrize("name", ["run", "session", "cancellation", "auditentry", "worker"])
def test_no_query_string_breaks_a_list(console, alice, name, query):
    a_run(alice)
    response = console.get(f"{reverse(f'admin:runs_{name}_changelist')}?{query}", follow=True)
    assert response.status_code == 200


@pytest.mark.parametrize("name", ["run", "session", "cancellation", "auditentry", "worker"])
def test_the_queries_of_a_list_do_not_grow_with_it(console, olivia, name):
    def fill(number):
        for index in range(number):
            owner = get_user_model().objects.create(username=f"user-{name}-{Run.objects.count()}-{index}")
            stuck_run(owner)
            operators.cancel(olivia, a_run(owner), "because")

    fill(2)
    url = reverse(f"admin:runs_{name}_changelist")
    console.get(url)  # what is read once for a process
    with CaptureQueriesContext(connection) as few:
        console.get(url)
    fill(5)
    with CaptureQueriesContext(connection) as many:
        console.get(url)
    assert len(many) == len(few) <= 15, [query["sql"][:150] for query in many]


def test_a_list_counts_no_further_than_its_bound(console, alice, monkeypatch):
    monkeypatch.setattr(paging, "COUNTED", 3)
    for _ in range(5):
        a_run(alice)
    response = console.get(reverse("admin:runs_run_changelist"))
    assert "at least 3 runs" in words_of(response)


def test_sessions_workers_cancellations_and_audit_entries_are_listed(console, alice, olivia):
    worker = a_worker(active_runs=3, stragglers=2, heartbeat_at=timezone.now() - timedelta(minutes=3))
    run = running_run(alice, a_worker())
    operators.cancel(olivia, run.id, "too slow")
    long_ago = timezone.now() - timedelta(seconds=125)
    Cancellation.objects.update(accepted_at=long_ago)
    sessions = words_of(console.get(reverse("admin:runs_session_changelist")))
    assert "hello alice assistant running chat" in sessions
    workers = words_of(console.get(reverse("admin:runs_worker_changelist")))
    assert f"{worker} silent 3 min" in workers
    assert "3 2 1.0.0" in workers
    cancellations = words_of(console.get(reverse("admin:runs_cancellation_changelist")))
    assert re.search(r"pending Operator olivia too slow 2 min \d+ s 2 min \d+ s so far", cancellations)
    Cancellation.objects.update(settled_at=long_ago + timedelta(seconds=2.5), outcome="cancelled")
    assert "2.5 s" in words_of(console.get(reverse("admin:runs_cancellation_changelist")))
    assert f"olivia cancel {run.id} too slow" in words_of(
        console.get(reverse("admin:runs_auditentry_changelist"))
    )


# Pages


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


# Words


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
