"""Who holds a lock delays others, and nobody waits for the other in turn."""

import asyncio
import threading
from contextlib import suppress

import pytest
from django.db import connection
from django.utils import timezone

from runs.foundation.database import in_thread
from runs.models import DailyTotal, Run, Session
from runs.recovery import deletion
from tests.fakes import Hold, Round, call, numbered
from tests.runs.waiting import event, terminal, until

pytestmark = pytest.mark.services("about the connections and locks of PostgreSQL")


@pytest.mark.parametrize("table", ["runs_session", "runs_run"])
async def test_a_lock_that_somebody_holds_delays_a_turn_and_loses_nothing(harness, server, table):
    harness.script.add(call("mark", x="1"), Round(numbered(20), Hold("middle"), numbered(20)))
    run_id = await harness.start()
    gate = harness.script.gate("middle")
    await gate.reached()
    await event(run_id, "message.delta")

    with server.holding(table, run_id if table == "runs_run" else harness.session):
        gate.open()
        await harness.ledger.ended(2)
        await until(server.lock_is_waited_for, what="the wait for the lock")
        assert (await harness.run(run_id)).status == "running"

    ended = await terminal(run_id)
    assert ended.status == "completed", ended.error_message
    words = " ".join(f"w{number}" for number in range(1, 21))
    assert (await harness.history())[-1]["text"].startswith(words)
    await harness.assert_next_completes()


@pytest.mark.parametrize("are_there", [False, True], ids=["first totals", "further totals"])
async def test_sessions_that_are_deleted_at_once_add_to_the_same_totals_one_after_the_other(
    server, alice, are_there
):
    """Their turns ended the same day and in another order."""
    day, meeting = timezone.localdate(), threading.Barrier(2)

    def make(*statuses):
        session = Session.objects.create(owner=alice, agent="assistant")
        for number, status in enumerate(statuses):
            Run.objects.create(
                session=session,
                agent="assistant",
                queue_place=number,
                position=number,
                status=status,
                message_id=str(number),
                finished_at=timezone.now(),
            )
            if are_there:
                DailyTotal.objects.get_or_create(day=day, agent="assistant", status=status)
        return session.id

    def delete(session_id):
        have_met = False

        def meet(execute, sql, *rest):
            nonlocal have_met
            done = execute(sql, *rest)
            if not have_met and "runs_dailytotal" in sql and not sql.startswith("SELECT"):
                have_met = True  # one holds a total now; the other does, too, or waits for it
                with suppress(threading.BrokenBarrierError):
                    meeting.wait(1)
            return done

        with connection.execute_wrapper(meet):
            deletion._delete_rows(session_id, alice, "", None)

    ways = ("completed", "interrupted"), ("interrupted", "completed")
    sessions = [await in_thread(make, *statuses) for statuses in ways]
    await asyncio.gather(*(in_thread(delete, one) for one in sessions))

    totals = await in_thread(lambda: list(DailyTotal.objects.values_list("day", "status", "runs")))
    assert sorted(totals) == [(day, "completed", 2), (day, "interrupted", 2)]
