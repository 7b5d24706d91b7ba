"""The life of a run in the database alone: no execution, no loop."""

from importlib import import_module
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runs import operations, statements
from runs.errors import IdempotencyConflict, NotInterrupted, NotWaiting, RunActive
from runs.foundation.values import lookup_key
from runs.lifecycle import admission, cancel_requests, endings, liveness, locks, questions, queue, titles
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.live import notices
from runs.log import events, tool_calls
from runs.models import Cancellation, Run, RunEvent, Session, ToolCall, Worker
from runs.recovery import sweep
from runs.states import CancelOutcome, Effect, ErrorCode, InterruptReason, RunStatus

pytestmark = pytest.mark.django_db


# What closes a turn that ended without an answer and without its execution.
NOTE = ("message.started", "message.completed")


def turn(text="hello", **options):
    defaults = {"multitask": "reject", "on_disconnect": "continue", "stream_modes": (), "key": None}
    return admission.Turn.checked(text, **defaults | options)


def types(run):
    return list(RunEvent.objects.filter(run=run).order_by("seq").values_list("type", flat=True))


def test_admission_makes_the_run_and_the_users_message_durable_together(alice, session):
    run = admission.admit(session.id, alice, turn("hello world"))

    assert run.status == RunStatus.QUEUED
    queued = RunEvent.objects.get(run=run)
    assert (queued.seq, queued.type) == (1, "run.queued")
    assert queued.data == {"message": run.message_id, "input": "hello world"}
    assert Run.objects.get().message_count == 1


def test_the_same_key_gives_the_same_run_and_another_request_is_refused(alice, session):
    first = admission.admit(session.id, alice, turn("hello", key="k"))

    assert admission.admit(session.id, alice, turn("hello", key="k")).id == first.id
    with pytest.raises(IdempotencyConflict):
        admission.admit(session.id, alice, turn("something else", key="k"))
    assert Run.objects.count() == 1


def test_reject_refuses_while_any_run_is_active_queued_included(alice, session):
    admission.admit(session.id, alice, turn())

    with pytest.raises(RunActive):
        admission.admit(session.id, alice, turn())


def test_enqueue_keeps_the_order_of_arrival(alice, session, worker):
    runs = [admission.admit(session.id, alice, turn(str(n), multitask="enqueue")) for n in range(3)]

    for expected in runs:
        claimed = queue.claim(session.id, worker.id)
        assert claimed.id == expected.id
        assert queue.claim(session.id, worker.id) is None
        assert endings.finish(claimed.id, claimed.claim, RunStatus.COMPLETED) is Outcome.DONE
    assert [run.position for run in Run.objects.order_by("queue_place")] == [1, 2, 3]


def test_interrupt_supersedes_what_is_active_and_spares_the_new_turn(alice, session, worker):
    old = admission.admit(session.id, alice, turn("old"))
    queue.claim(session.id, worker.id)
    waiting = admission.admit(session.id, alice, turn("waiting", multitask="enqueue"))
    new = admission.admit(session.id, alice, turn("new", multitask="interrupt"))

    old.refresh_from_db()
    waiting.refresh_from_db()
    assert old.cancel_requested_at is not None
    assert waiting.status == RunStatus.CANCELLED
    assert new.cancel_requested_at is None
    assert Cancellation.objects.get(run=old).source == "superseded"


def test_the_database_refuses_two_occupying_runs(alice, session, worker):
    admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    second = admission.admit(session.id, alice, turn(multitask="enqueue"))

    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(id=second.id).update(status=RunStatus.RUNNING, position=7)


def test_cancel_of_a_queued_run_ends_it_at_once(alice, session):
    run = admission.admit(session.id, alice, turn())
    revision = Session.objects.get().cancellation_revision

    answer = operations.cancel_run(alice, run.id, reason="changed my mind")

    assert answer["outcome"] == "cancelled"
    assert answer["settled_at"] is not None
    assert types(run) == ["run.queued", *NOTE, "run.cancelled"]
    assert Session.objects.get().cancellation_revision == revision
    assert operations.session_snapshot(alice, session.id)["status"] == "idle"


def test_a_question_of_a_cancelled_run_can_no_longer_be_answered(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    questions.wait(run.id, claimed.claim, [{"id": "q", "value": "Really?"}])

    operations.cancel_run(alice, run.id)

    with pytest.raises(NotWaiting):
        operations.answer(alice, run.id, {"q": "yes"})
    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED


def test_a_queued_run_ends_while_anothers_cancel_is_pending(alice, session, worker):
    admission.admit(session.id, alice, turn())
    running = queue.claim(session.id, worker.id)
    queued = admission.admit(session.id, alice, turn(multitask="enqueue"))
    operations.cancel_run(alice, running.id)
    before = Session.objects.get().cancellation_revision

    operations.cancel_run(alice, queued.id)

    queued.refresh_from_db()
    assert queued.status == RunStatus.CANCELLED
    assert Session.objects.get().cancellation_revision == before
    assert operations.session_snapshot(alice, session.id)["cancellation_pending"] is True


def test_cancel_of_what_has_ended_is_a_success_that_changes_nothing(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    endings.finish(run.id, claimed.claim, RunStatus.COMPLETED)
    log = types(run)

    for answer in (operations.cancel_run(alice, run.id), operations.cancel_session(alice, session.id)):
        assert answer["id"] is None
        assert answer["outcome"] == "already_finished"
    assert types(run) == log
    assert Cancellation.objects.count() == 0


def test_cancel_of_a_cancelled_run_answers_with_its_own_cancellation(alice, session):
    run = admission.admit(session.id, alice, turn())
    first = operations.cancel_run(alice, run.id)

    assert operations.cancel_run(alice, run.id) == first


def test_an_accepted_cancel_wins_over_every_other_ending(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    operations.cancel_run(alice, run.id)

    error = Failure(ErrorCode.PROVIDER, "broke")
    assert endings.finish(run.id, claimed.claim, RunStatus.COMPLETED) is Outcome.CANCEL_FIRST
    assert endings.finish(run.id, claimed.claim, RunStatus.FAILED, error=error) is Outcome.CANCEL_FIRST
    assert questions.wait(run.id, claimed.claim, []) is Outcome.CANCEL_FIRST
    assert types(run) == ["run.queued", "run.started"]
    assert endings.finish(run.id, claimed.claim, RunStatus.CANCELLED) is Outcome.DONE
    assert Cancellation.objects.get().outcome == CancelOutcome.CANCELLED


def test_the_revision_grows_by_one_per_change(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)

    def shown():
        snapshot = operations.session_snapshot(alice, session.id)
        return snapshot["cancellation_pending"], snapshot["cancellation_revision"]

    assert shown() == (False, 0)
    operations.cancel_run(alice, run.id)
    operations.cancel_run(alice, run.id)
    assert shown() == (True, 1)
    endings.finish(run.id, claimed.claim, RunStatus.CANCELLED)
    assert shown() == (False, 2)


def test_an_overdue_cancel_times_out_and_can_be_tried_again(alice, session, worker, settings):
    settings.RUNS_CANCEL_TIMEOUT = 0
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id)
    Cancellation.objects.update(accepted_at=timezone.now() - timezone.timedelta(seconds=1))

    assert sweep.sweep(worker.id).cancellations_timed_out == 1

    assert Cancellation.objects.get(id=first["id"]).outcome == "timed_out"
    run.refresh_from_db()
    assert run.status == RunStatus.RUNNING
    second = operations.cancel_run(alice, run.id)
    assert second["id"] != first["id"]
    assert operations.session_snapshot(alice, session.id)["cancellation_revision"] == 3


def test_a_cancel_that_timed_out_and_is_carried_out_all_the_same_is_told_as_that(
    alice, session, worker, settings
):
    """Who tries it again, as the time-out says, would hear of the time-out for ever."""
    settings.RUNS_CANCEL_TIMEOUT = 0
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id, reason="Enough.")
    Cancellation.objects.update(accepted_at=timezone.now() - timezone.timedelta(seconds=1))
    sweep.sweep(worker.id)

    endings.finish(run.id, claimed.claim, RunStatus.CANCELLED)

    told = RunEvent.objects.get(run=run, type="run.cancelled").data["cancellation"]
    assert (told["outcome"], told["reason"], told["requested_by"]) == (
        "cancelled",
        "Enough.",
        first["requested_by"],
    )
    for again in (operations.cancel_run(alice, run.id), operations.cancel_session(alice, session.id)):
        assert again == told
    snapshot = operations.session_snapshot(alice, session.id)
    assert (snapshot["cancellation_pending"], snapshot["cancellation_revision"]) == (False, 2)


def test_cancel_of_a_run_whose_worker_is_gone_is_reconciled_at_once(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    answer = operations.cancel_run(alice, run.id)

    assert answer["outcome"] == "reconciled"
    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED
    assert operations.session_snapshot(alice, session.id)["cancellation_pending"] is False


def test_a_worker_that_was_taken_for_dead_is_told_that_its_run_was_cancelled(
    alice, session, worker, monkeypatch
):
    """It may live all the same, and what is cancelled must not go on until its next heartbeat."""
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    monkeypatch.setattr(liveness, "is_dead", lambda worker: True)
    monkeypatch.setattr(notices, "stop_execution", told := Mock())

    assert operations.cancel_run(alice, run.id)["outcome"] == "reconciled"

    assert [(told_of.args[0].id, told_of.kwargs) for told_of in told.call_args_list] == [
        (run.id, {"fenced": True})
    ]


def test_a_second_cancel_finds_that_the_worker_has_died_since(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    first = operations.cancel_run(alice, run.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    second = operations.cancel_run(alice, run.id)

    assert (second["id"], second["outcome"]) == (first["id"], "reconciled")


def test_a_foreign_and_an_unknown_id_are_the_same_and_record_nothing(alice, bob, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)

    messages = set()
    for attempt in (
        lambda: operations.cancel_run(bob, run.id),
        lambda: operations.cancel_run(bob, uuid4()),
        lambda: operations.cancel_run(bob, "no uuid"),
        lambda: operations.cancel_session(bob, session.id),
        lambda: operations.cancel_session(bob, uuid4()),
    ):
        with pytest.raises(operations.NotFound) as refused:
            attempt()
        messages.add(str(refused.value))
    assert len(messages) == 1
    snapshot = operations.session_snapshot(alice, session.id)
    assert (snapshot["cancellation_pending"], snapshot["cancellation_revision"]) == (False, 0)


def test_force_cancel_ends_the_run_first_and_fences_the_execution(alice, olivia, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)

    answer = operations.force_cancel(olivia, run.id, "It hangs.")

    assert (answer["outcome"], answer["escalated"], answer["source"]) == ("reconciled", True, "operator")
    assert endings.finish(run.id, claimed.claim, RunStatus.COMPLETED) is Outcome.FENCED
    assert types(run) == ["run.queued", "run.started", *NOTE, "run.cancelled"]


def test_force_cancel_needs_the_permission(alice, session):
    run = admission.admit(session.id, alice, turn())

    with pytest.raises(operations.Forbidden):
        operations.force_cancel(alice, run.id, "me")


def test_a_dead_workers_run_is_reclaimed_once_and_a_fresh_one_never(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)

    assert sweep.sweep(uuid4()).runs_interrupted == 0
    Worker.objects.update(pid=2**22 + 1, pid_started="1")
    assert sweep.sweep(uuid4()).runs_interrupted == 1
    assert sweep.sweep(uuid4()).runs_interrupted == 0
    assert types(run) == ["run.queued", "run.started", "run.interrupted"]
    assert RunEvent.objects.get(type="run.interrupted").data["reason"] == InterruptReason.WORKER_LOST
    assert operations.session_snapshot(alice, session.id)["status"] == "interrupted"


def test_a_reclaimed_run_with_an_accepted_cancel_becomes_cancelled(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    operations.cancel_run(alice, run.id)
    Worker.objects.update(pid=2**22 + 1, pid_started="1")

    sweep.sweep(uuid4())

    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED
    assert Cancellation.objects.get().outcome == CancelOutcome.RECONCILED


def test_the_queue_waits_behind_an_interrupted_run_until_somebody_decides(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    behind = admission.admit(session.id, alice, turn("behind", multitask="enqueue"))
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    assert queue.claim(session.id, worker.id) is None
    operations.dismiss(alice, run.id)
    assert queue.claim(session.id, worker.id).id == behind.id


def test_resume_goes_to_the_head_of_the_queue(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    admission.admit(session.id, alice, turn("behind", multitask="enqueue"))
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    resumed = operations.resume(alice, run.id)

    assert resumed["resumes"] == str(run.id)
    assert str(queue.claim(session.id, worker.id).id) == resumed["id"]
    with pytest.raises(NotInterrupted):
        operations.resume(alice, run.id)


def test_a_new_message_dismisses_an_interrupted_run(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)

    new = admission.admit(session.id, alice, turn("go on"))

    run.refresh_from_db()
    assert run.resolution == "dismissed"
    assert queue.claim(session.id, worker.id).id == new.id


@pytest.mark.parametrize("end", ["interrupted", "cancelled", "forced", "left"])
def test_open_tool_calls_are_closed_with_what_is_known(alice, session, worker, end):
    """Of a lost run the last moments may be missing in the log, so what it asked for may have begun."""
    run = admission.admit(session.id, alice, turn())
    claim = queue.claim(session.id, worker.id).claim
    ToolCall.objects.create(run=run, call_id="started", name="a", started_at=timezone.now())
    ToolCall.objects.create(run=run, call_id="asked", name="b")
    by = {"source": "user", "reason": "", "requested_by": alice}

    if end == "interrupted":
        endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)
    elif end == "cancelled":
        cancel_requests.request_cancel(run.id, **by)
        endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)
    elif end == "forced":
        cancel_requests.force_cancel(run.id, **by)
    else:
        endings.finish(run.id, claim, RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN)

    run.refresh_from_db()
    asked = "none" if end == "left" else "unknown"
    rows = {row.call_id: row for row in ToolCall.objects.all()}
    assert {row.effect for row in rows.values()} == {"unknown", asked}
    assert rows["asked"].effect == asked
    assert (rows["asked"].started_at is None) == (asked == "none")
    assert {row.status for row in rows.values()} == {run.status}
    assert types(run)[-1] == f"run.{run.status}"


def test_ids_of_any_length_are_told_apart_and_stay_what_the_provider_gave(alice, session, worker):
    """Some gateways put hundreds of characters into them. Results are matched by them."""
    run = admission.admit(session.id, alice, turn())
    queue.claim(session.id, worker.id)
    told, open_ = (f"call_{'x' * 5000}{number}" for number in range(2))
    message = f"msg_{'y' * 5000}"
    asked = [{"id": call, "name": "pay", "args": {}} for call in (told, open_)]
    started = {"message": message, "name": "pay", "args": {}, "node": "tools", "namespace": []}
    said = {"message": message, "role": "assistant", "text": "", "usage": None, "status": "complete"}
    with locks.locked_run(run.id) as (_, locked):
        log = [
            ("message.completed", said | {"tool_calls": asked}),
            *(("tool.started", started | {"tool_call": call["id"]}) for call in asked),
            ("tool.completed", {"tool_call": told, "result": "paid", "duration_ms": 1}),
        ]
        now = timezone.now()
        events.count(locked, log, now)
        locked.write()
        events.record(locked, log, now)

    cancel_requests.force_cancel(run.id, source="user", reason="", requested_by=alice)

    log = RunEvent.objects.filter(run=run, type__in=("tool.completed", "tool.cancelled"))
    assert [(event.type, event.data["tool_call"]) for event in log.order_by("seq")] == [
        ("tool.completed", told),
        ("tool.cancelled", open_),
    ]
    rows = {row.given_id: row for row in ToolCall.objects.filter(run=run)}
    assert {call: row.effect for call, row in rows.items()} == {told: "done", open_: "unknown"}
    assert {len(row.call_id) for row in rows.values()} == {len(row.message_id) for row in rows.values()}
    assert len(rows[told].call_id) == 200

    tool_calls.straggler_ended(run.id, open_, Effect.DONE)
    rows[open_].refresh_from_db()
    assert rows[open_].effect == "done"


@pytest.mark.sqlite("is about what no other database has let in")
def test_calls_with_long_ids_from_before_the_keys_are_found_again(alice, session):
    run = admission.admit(session.id, alice, turn())
    long, message = "c" * 300, "m" * 300
    for id_, of in ((long, "m"), ("short", message), ("other", "m")):
        ToolCall.objects.create(run=run, call_id=id_, message_id=of, name="pay")

    migration = import_module("runs.migrations.0006_long_ids_of_calls")
    migration.give_keys(apps, SimpleNamespace(connection=connection))

    rows = {row.given_id: row for row in ToolCall.objects.filter(run=run)}
    assert set(rows) == {long, "short", "other"}
    assert (rows[long].call_id, rows[long].message_id) == (lookup_key(long), "m")
    assert (rows["short"].call_id, rows["short"].long_id) == ("short", None)
    assert rows["short"].message_id == lookup_key(message)


def test_a_first_turn_gives_the_title_and_the_users_own_title_stays(alice, session):
    admission.admit(session.id, alice, turn("What is the  capital of\nFrance?"))
    session.refresh_from_db()
    assert session.title == "What is the capital of France?"

    operations.rename_session(alice, session.id, "Mine")
    titles.rename(session.id, "Generated", "generated")
    session.refresh_from_db()
    assert session.title == "Mine"


@pytest.mark.sqlite("reads how SQLite would go about it")
@pytest.mark.parametrize("asked", [statements.open_runs, statements.claimable_runs])
def test_what_a_turn_asks_of_its_session_does_not_grow_with_the_session(session, asked):
    with CaptureQueriesContext(connection) as queries:
        asked(session.id)
    [query] = queries.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        plan = [row[3] for row in cursor.fetchall()]
    looked_at = [step for step in plan if step.startswith(("SEARCH", "SCAN"))]
    assert looked_at
    for step in looked_at:
        assert step.endswith("USING INDEX run_queue (session_id=? AND status=?)"), plan


def test_a_question_whose_value_only_python_takes_for_the_one_before_is_stored(alice, session, worker):
    """To Python, 1 equals true; in JSON they differ."""
    admission.admit(session.id, alice, admission.Turn("hello"))
    for value in (1, True):
        run = queue.claim(session.id, worker.id)
        questions.wait(run.id, run.claim, [{"id": "q", "value": value}])
        assert Run.objects.get(id=run.id).questions[0]["value"] is value
        questions.answer(run.id, {"q": "Yes"}, alice)
