"""Tool calls that are open when their run ends are closed, whatever their ids are."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db import connection
from django.utils import timezone

from runs.foundation.values import lookup_key
from runs.lifecycle import admission, cancel_requests, endings, locks, queue
from runs.log import events, tool_calls
from runs.models import RunEvent, ToolCall
from runs.states import Effect, InterruptReason, RunStatus
from tests.runs.lifecycle.turns import turn, types

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("end", ["interrupted", "cancelled", "forced", "left", "left in order"])
def test_open_tool_calls_are_closed_with_what_is_known(alice, session, worker, end):
    """Only of a ToolNode's call is it known that it began when the log has no start of it."""
    run = admission.admit(session.id, alice, turn())
    claim = queue.claim(session.id, worker.id).claim
    ToolCall.objects.create(run=run, call_id="started", name="a", started_at=timezone.now())
    ToolCall.objects.create(run=run, call_id="asked", name="b")
    ToolCall.objects.create(run=run, call_id="gated", name="c", start_is_logged=True)
    by = {"source": "user", "reason": "", "requested_by": alice}

    if end == "interrupted":
        endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)
    elif end == "cancelled":
        cancel_requests.request_cancel(run.id, **by)
        endings.interrupt(run.id, worker.id, InterruptReason.WORKER_LOST)
    elif end == "forced":
        cancel_requests.force_cancel(run.id, **by)
    else:
        left = {"reason": InterruptReason.SHUTDOWN, "not_begun": ["asked"] if end == "left in order" else ()}
        endings.finish(run.id, claim, RunStatus.INTERRUPTED, **left)

    run.refresh_from_db()
    rows = {row.call_id: row for row in ToolCall.objects.all()}
    effects = {
        "started": "unknown",
        "asked": "none" if end == "left in order" else "unknown",
        "gated": "none",
    }
    assert {call: row.effect for call, row in rows.items()} == effects
    assert {call for call, row in rows.items() if row.started_at is None} == {
        call for call, effect in effects.items() if effect == "none"
    }
    assert {row.status for row in rows.values()} == {run.status}
    assert types(run)[-1] == f"run.{run.status}"
    if run.status == RunStatus.INTERRUPTED:
        assert RunEvent.objects.get(run=run, type="run.interrupted").data["effects"] == effects


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
