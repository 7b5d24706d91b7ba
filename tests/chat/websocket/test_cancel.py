"""``agent.cancel`` is answered when the operation has settled."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run
from tests.chat.live import PATIENT, Socket, bearer, call, eventually, socket
from tests.fakes import call as tool_call

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_cancel_stops_the_model_and_is_answered_with_its_end(engine, model, held, alice, session):
    async with socket(alice, session) as client:
        await client.ask("turn.start", input="hello")
        await held.reached()
        settled = await client.ask("agent.cancel", session_id=session, reason="enough")
    assert settled["result"]["outcome"] == "cancelled"
    assert settled["result"]["reason"] == "enough"
    assert settled["result"]["requested_by"] == "alice"
    assert settled["result"]["settled_at"]
    assert model.calls[0].outcome == "closed"


async def test_all_who_cancel_get_the_same_operation(engine, model, held, alice, session):
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(socket(alice, session)) for _ in range(5)]
        await clients[0].ask("turn.start", input="hello")
        await held.reached()
        over_sockets = [client.ask("agent.cancel", session_id=session) for client in clients]
        over_rest = [call(alice, "POST", f"sessions/{session}/cancel/", {"wait": 20}) for _ in range(5)]
        answers = await asyncio.gather(*over_sockets, *over_rest)
    settled = [answer["result"] if isinstance(answer, dict) else answer.json() for answer in answers]
    recorded = [answer for answer in settled if answer["id"] is not None]
    assert len({answer["id"] for answer in recorded}) == 1
    assert {answer["outcome"] for answer in recorded} == {"cancelled"}
    run = await Run.objects.aget()
    assert await run.cancellations.acount() == 1
    assert await run.events.filter(type="run.cancelled").acount() == 1


async def test_the_cancel_goes_on_when_its_client_goes(engine, model, alice, session):
    model.script.add(tool_call("heeding_sync", seconds=60))
    client = Socket(f"/ws/sessions/{session}/", await bearer(alice))
    await client.connect(PATIENT)
    run = (await client.ask("turn.start", input="block"))["result"]["id"]
    await client.event("tool.started")
    await client.say("agent.cancel", request_id="x", session_id=session)
    await eventually(lambda: in_thread(Run.objects.filter(cancel_requested_at__isnull=False).exists))
    await client.disconnect(timeout=PATIENT)
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status="cancelled").exists))


async def test_cancel_of_an_idle_session_says_so(engine, model, alice, session):
    async with socket(alice, session) as client:
        settled = await client.ask("agent.cancel", session_id=session)
    assert (settled["result"]["id"], settled["result"]["outcome"]) == (None, "already_finished")


async def test_revisions_only_grow_and_false_is_sent_as_false(engine, model, held, alice, session):
    async with socket(alice, session) as client:
        await client.ask("turn.start", input="hello")
        await held.reached()
        await client.say("agent.cancel", request_id="x", session_id=session)
        pending = await client.until("session.cancellation_changed")
        settled = await client.until("session.cancellation_changed")
    assert pending["session_id"] == settled["session_id"] == session
    assert (pending["cancellation_pending"], pending["cancellation_revision"]) == (True, 1)
    assert (settled["cancellation_pending"], settled["cancellation_revision"]) == (False, 2)


@pytest.mark.parametrize("outcome", ["timed_out", "failed"])
async def test_a_cancel_that_did_not_work_comes_as_an_error(
    engine, model, held, alice, session, outcome, monkeypatch
):
    async def wait(cancellation, seconds):
        return {**cancellation, "outcome": outcome}

    async with socket(alice, session) as client:
        await client.ask("turn.start", input="hello")
        await held.reached()
        monkeypatch.setattr(operations, "wait_for_cancellation", wait)
        answer = await client.ask("agent.cancel", session_id=session)
    assert (answer["type"], answer["code"]) == ("error", "unavailable")
    assert answer["cancellation"]["outcome"] == outcome
