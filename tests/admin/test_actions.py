"""What operators do from the console: confirmed, with a reason, on record, and reported run by run."""

import re

import pytest
from django.urls import reverse

from runs import operations, operators
from runs.admin.actions import commands
from runs.errors import Forbidden, NotFound
from runs.models import AuditEntry, Cancellation, Run, Worker
from runs.states import CancelOutcome, CancelSource, Resolution, RunStatus
from tests.admin.rows import a_call, a_run, a_worker, running_run, stuck_run
from tests.admin.test_pages import words_of

LIST = "admin:runs_run_changelist"
ACTIONS = ["cancel", "force_cancel", "reconcile", "resume", "dismiss"]


def choose(browser, action, *runs, follow=False, **more):
    """Give a command to runs; without ``reason`` only as far as the page that asks for it."""
    body = {"action": action, "_selected_action": [str(getattr(run, "id", run)) for run in runs], **more}
    return browser.post(reverse(LIST), body, follow=follow)


def do(browser, action, *runs, reason="it hangs"):
    return choose(browser, action, *runs, confirmed="yes", reason=reason, follow=True)


def status_of(run) -> str:
    return Run.objects.get(id=getattr(run, "id", run)).status


def test_nothing_happens_before_it_is_confirmed_with_a_reason(console, alice):
    run = stuck_run(alice)
    before = Run.objects.values().get(id=run.id)
    for more in (
        {},
        {"confirmed": "yes"},
        {"confirmed": "yes", "reason": "  "},
        {"confirmed": "yes", "reason": "x" * 501},
        {"confirmed": "yes", "reason": "a\0b"},
    ):
        response = choose(console, "force_cancel", run, **more)
        assert "It ends cancelled now, whatever its worker does." in words_of(response)
    assert Run.objects.values().get(id=run.id) == before
    assert not AuditEntry.objects.exists()


def test_force_cancel_ends_runs_of_dead_frozen_and_foreign_workers(console, alice):
    runs = [
        running_run(alice, a_worker(gone=True)),
        stuck_run(alice, a_worker()),
        running_run(alice, a_worker(host="elsewhere")),
        running_run(alice, None),
    ]
    done = a_run(alice, RunStatus.COMPLETED)
    words = words_of(do(console, "force_cancel", *runs, done))
    assert "4 of 5 runs were changed." in words
    assert f"Not changed Run What came of it {done[:8]} It had ended already: completed." in words
    assert {status_of(run) for run in runs} == {RunStatus.CANCELLED}
    for run in runs:
        operation = Cancellation.objects.get(run=run)
        assert (operation.source, operation.reason, operation.outcome) == (
            "operator",
            "it hangs",
            "reconciled",
        )
        assert operation.requested_by.username == "olivia"
    entries = {entry.target: entry for entry in AuditEntry.objects.all()}
    assert set(entries) == {*(str(run.id) for run in runs), done}
    assert {(entry.actor, entry.action, entry.reason) for entry in entries.values()} == {
        ("olivia", "force_cancel", "it hangs")
    }
    assert [entries[done].details["changed"], entries[str(runs[0].id)].details["changed"]] == [False, True]


def test_cancel_tells_a_living_worker_and_ends_what_has_none(console, alice):
    living, dead = running_run(alice, a_worker()), running_run(alice, a_worker(gone=True))
    queued, waiting = a_run(alice), a_run(alice, RunStatus.WAITING)
    asked = words_of(choose(console, "cancel", living, dead, queued, waiting))
    for told in (
        "Its worker is told to stop.",
        "Its worker is gone",
        "It leaves the line",
        "can no longer be answered",
    ):
        assert told in asked
    words = words_of(do(console, "cancel", living, dead, queued, waiting))
    assert "4 of 4 runs were changed." in words
    assert [status_of(run) for run in (living, dead, queued, waiting)] == [
        "running",
        "cancelled",
        "cancelled",
        "cancelled",
    ]
    assert Cancellation.objects.get(run=living).source == CancelSource.OPERATOR
    again = words_of(do(console, "cancel", living))
    assert "A cancel was pending already; this one joined it." in again
    assert Cancellation.objects.filter(run=living).count() == 1


def test_reconcile_says_what_it_did_to_each(console, alice):
    lost, fine = running_run(alice, a_worker(gone=True)), running_run(alice, a_worker())
    interrupted = a_run(alice, RunStatus.INTERRUPTED)
    words = words_of(do(console, "reconcile", lost, fine, interrupted))
    assert "2 of 3 runs were changed." in words
    assert "Its worker was lost, so the run was ended: interrupted." in words
    assert "Its worker is alive, so the run goes on; force-cancel would end it." in words
    assert Run.objects.get(id=interrupted).resolution == Resolution.DISMISSED
    assert AuditEntry.objects.filter(action="reconcile").count() == 3


def test_resume_goes_on_in_a_new_run_for_the_same_user_and_warns_of_what_may_be_done_twice(console, alice):
    run = Run.objects.get(id=a_run(alice, RunStatus.INTERRUPTED))
    a_call(run, name="pay", effect="unknown", status="interrupted")
    assert "may have done their work already and may do it again: pay." in words_of(
        choose(console, "resume", run)
    )
    words = words_of(do(console, "resume", run))
    new = Run.objects.get(resumes=run)
    assert f"Resume: It goes on in the run {new.id}." in words
    assert (new.requested_by, new.status) == (alice, RunStatus.QUEUED)
    assert "something was decided about it already" in words_of(do(console, "resume", run))
    assert [
        entry.details["changed"] for entry in AuditEntry.objects.filter(action="resume").order_by("id")
    ] == [True, False]


def test_dismiss_closes_an_interrupted_run_and_no_other(console, alice):
    run, done = a_run(alice, RunStatus.INTERRUPTED), a_run(alice, RunStatus.COMPLETED)
    words = words_of(do(console, "dismiss", run, done))
    assert "1 of 2 runs were changed." in words
    assert Run.objects.get(id=run).resolution == Resolution.DISMISSED
    assert Run.objects.get(id=done).resolution is None


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_its_own_permission(staff, alice, action):
    others = [f"{other}_run" for other in ACTIONS if other != action]
    run = a_run(alice, RunStatus.INTERRUPTED if action in ("resume", "dismiss") else RunStatus.QUEUED)
    browser = staff("view_run", *others)
    offered = browser.get(reverse("admin:runs_run_change", args=[run])).content.decode()
    assert f'value="{action}"' not in offered
    assert f'value="{action}"' not in browser.get(reverse(LIST)).content.decode()
    before = Run.objects.values().get(id=run)
    do(browser, action, run)
    assert Run.objects.values().get(id=run) == before
    assert not AuditEntry.objects.filter(action=action).exists()
    allowed = staff("view_run", f"{action}_run", name="susan")
    assert f'value="{action}"' in allowed.get(reverse("admin:runs_run_change", args=[run])).content.decode()
    do(allowed, action, run)
    assert AuditEntry.objects.get(action=action).actor == "susan"


@pytest.mark.parametrize("action", ACTIONS)
def test_an_operation_checks_the_permission_itself(alice, bob, action):
    run = a_run(alice)
    operation = commands.COMMANDS[action].perform
    with pytest.raises(Forbidden):
        operation(alice, run, "mine")
    with pytest.raises(NotFound):
        operation(bob, run, "not mine")
    assert not AuditEntry.objects.exists()


def test_a_run_that_was_selected_is_reported_although_it_left_the_filter(console, alice):
    run = a_run(alice, RunStatus.COMPLETED)
    body = {"action": "cancel", "_selected_action": [run], "confirmed": "yes", "reason": "why"}
    words = words_of(console.post(f"{reverse(LIST)}?status__exact=running", body, follow=True))
    assert "It had ended already: completed." in words


@pytest.mark.parametrize("chosen", [["x"], ["5c5b2f6e-7d0e-4a53-9d0b-000000000000"], [""], ["x" * 5000]])
def test_what_was_selected_and_does_not_exist_is_no_error(console, alice, chosen):
    body = {"action": "force_cancel", "_selected_action": chosen, "confirmed": "yes", "reason": "why"}
    response = console.post(reverse(LIST), body, follow=True)
    assert re.search("does not exist|are gone", words_of(response) + response.content.decode())


def test_all_runs_of_a_filter_can_be_chosen_up_to_a_bound(console, alice, monkeypatch):
    runs = [a_run(alice) for _ in range(4)]
    body = {"action": "cancel", "_selected_action": runs[:1], "select_across": "1", "index": "0"}
    assert "Cancel 4 runs" in console.post(reverse(LIST), body).content.decode()
    monkeypatch.setattr("runs.admin.actions.confirmation.LIMIT", 3)
    refused = console.post(reverse(LIST), body, follow=True).content.decode()
    assert "at most 3 runs at once" in refused


def test_the_report_of_a_bulk_action_can_be_read_again_and_does_nothing_again(console, alice):
    runs = [a_run(alice), a_run(alice)]
    assert "2 of 2 runs" in words_of(do(console, "cancel", *runs))
    assert "2 of 2 runs" in words_of(console.get(reverse("admin:runs_run_report")))
    assert AuditEntry.objects.count() == 2


def test_one_run_that_is_gone_does_not_stop_the_others(console, alice, monkeypatch):
    runs = [Run.objects.get(id=a_run(alice)) for _ in range(2)]
    ghost = Run(id="5c5b2f6e-7d0e-4a53-9d0b-000000000000")
    report = commands.perform(
        commands.COMMANDS["cancel"], Worker and console_user(console), [ghost, *runs], "why"
    )
    assert [line["changed"] for line in report] == [False, True, True]
    assert report[0]["told"] == NotFound().message


def console_user(console):
    from django.contrib.auth import get_user_model

    return get_user_model().objects.get(pk=console.session["_auth_user_id"])


def test_an_audit_entry_and_its_change_are_one_transaction(olivia, alice, monkeypatch):
    run = a_run(alice)

    def fail(*args, **kwargs):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(operators, "_audit", fail)
    with pytest.raises(RuntimeError):
        operators.cancel(olivia, run, "why")
    assert status_of(run) == RunStatus.QUEUED
    assert not Cancellation.objects.exists()


def test_the_users_page_says_that_an_operator_did_it_and_why(console, alice):
    from tests.admin.conftest import logged_in

    run = running_run(alice, a_worker(gone=True))
    do(console, "force_cancel", run, reason="The <b>provider</b> hangs")
    for query in ("", f"messages/?run={run.id}"):
        content = logged_in(alice).get(f"/chat/{run.session_id}/{query}").content.decode()
        assert "Stopped by an operator: The &lt;b&gt;provider&lt;/b&gt; hangs" in content
    mine = a_run(alice)
    operations.cancel_run(alice, mine, reason="not for the page")
    content = logged_in(alice).get(f"/chat/{Run.objects.get(id=mine).session_id}/").content.decode()
    assert "by an operator" not in content


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("dismiss", "Interrupted, then dismissed by an operator: The &lt;b&gt;disk&lt;/b&gt; is full"),
        ("reconcile", "Interrupted, then dismissed by an operator: The &lt;b&gt;disk&lt;/b&gt; is full"),
        ("resume", "Interrupted, then resumed by an operator: The &lt;b&gt;disk&lt;/b&gt; is full"),
    ],
)
def test_the_users_page_says_why_an_operator_decided_about_an_interrupted_turn(console, alice, action, told):
    run = Run.objects.get(id=a_run(alice, RunStatus.INTERRUPTED))
    do(console, action, run, reason="The <b>disk</b> is full")
    assert told in shown_to(alice, run)


def test_a_decision_of_the_user_is_not_shown_as_an_operators(console, alice):
    run = running_run(alice, a_worker(gone=True))
    do(console, "reconcile", run)  # which has changed it, and decided nothing
    operations.dismiss(alice, run.id)
    do(console, "dismiss", run)
    page = shown_to(alice, run)
    assert 'data-mark="interrupted">Interrupted</p>' in page
    assert "operator" not in page


def test_the_forecast_and_the_report_say_what_a_queued_turn_waits_for(console, alice):
    ahead = running_run(alice, a_worker())
    queued = a_run(alice, RunStatus.QUEUED, str(ahead.session_id))

    def foreseen_and_told():
        asked, done = choose(console, "reconcile", queued), do(console, "reconcile", queued)
        return words_of(asked), words_of(done)

    asked, done = foreseen_and_told()
    assert f"it waits behind the run {str(ahead.id)[:8]}, which is running." in asked
    assert f"It is queued behind the run {ahead.id}, which is running." in done
    do(console, "force_cancel", ahead)
    asked, done = foreseen_and_told()
    assert "Its session is offered to a worker again." in asked
    assert "its session was offered to a worker again." in done
    Worker.objects.all().delete()
    asked, done = foreseen_and_told()
    assert "no worker is there that takes turns" in asked
    assert "no worker is there that takes turns" in done


def shown_to(user, run):
    """The page of the run's session."""
    from tests.admin.conftest import logged_in

    return logged_in(user).get(f"/chat/{run.session_id}/").content.decode()


def test_a_cancel_that_was_timed_out_can_be_forced(console, alice, olivia):
    run = running_run(alice, a_worker())
    operators.cancel(olivia, run.id, "first")
    operation = Cancellation.objects.get(run=run)
    from runs.lifecycle import cancel_requests

    assert cancel_requests.time_out_cancellation(operation.id)
    do(console, "force_cancel", run)
    assert status_of(run) == RunStatus.CANCELLED
    assert list(Cancellation.objects.order_by("accepted_at").values_list("outcome", flat=True)) == [
        CancelOutcome.TIMED_OUT,
        CancelOutcome.RECONCILED,
    ]
