"""A turn over a socket, from its start to its end, and for who comes back with a cursor."""

from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run
from tests.chat.live import call, eventually, socket
from tests.chat.websocket.handshakes import UNKNOWN
from tests.fakes import call as tool_call
from tests.fakes import say

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_socket_gets_the_session_first_and_then_every_event_once(engine, model, alice, session):
    async with socket(alice, session) as client:
        first = await client.frame()
        assert first["type"] == "session.state_changed"
        assert first["session"]["cancellation_pending"] is False
        assert first["session"]["cancellation_revision"] == 0
        started = await client.ask("turn.start", input="hello")
        assert started["result"]["status"] == "queued"
        events = []
        while not events or events[-1]["type"] != "run.completed":
            events.append((await client.until("run.event"))["event"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["run"] for event in events} == {started["result"]["id"]}
    assert (await call(alice, "GET", f"runs/{events[0]['run']}/events/", accept="application/json")).json()[
        "events"
    ] == events


async def test_a_message_sent_twice_is_one_turn(engine, model, held, alice, session):
    key = str(uuid4())
    async with socket(alice, session) as client, socket(alice, session) as other:
        first = await client.ask("turn.start", request_id=key, input="hello")
        again = await client.ask("turn.start", request_id=key, input="hello")
        elsewhere = await other.ask("turn.start", request_id=key, input="hello")
        assert first["result"]["id"] == again["result"]["id"] == elsewhere["result"]["id"]
        over_rest = await call(
            alice, "POST", f"sessions/{session}/runs/", {"input": "hello"}, **{"idempotency-key": key}
        )
        assert over_rest.json()["id"] == first["result"]["id"]
        conflict = await client.ask("turn.start", request_id=key, input="other")
        assert conflict["code"] == "idempotency_conflict"
    held.open()
    async with socket(alice, session) as back:
        again = await back.ask("turn.start", request_id=key, input="hello")
        assert again["result"]["id"] == first["result"]["id"]
    assert await Run.objects.acount() == 1


async def test_ping_and_stop_are_heard_while_a_tool_blocks(engine, model, alice, bob, session):
    model.script.add(tool_call("heeding_sync", seconds=60), marker="block")
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(socket(alice, session))
        await busy.ask("turn.start", input="block")
        await busy.event("tool.started")
        await busy.say("ping")
        await busy.until("pong")
        for _ in range(3):
            opened = await in_thread(operations.create_session, bob)
            other = await stack.enter_async_context(socket(bob, opened["id"]))
            assert (await other.ask("turn.start", input="quick"))["type"] == "response"
            await other.event("run.completed")
        settled = await busy.ask("agent.cancel", session_id=session)
        assert settled["result"]["outcome"] == "cancelled"


async def test_two_starts_in_a_row_are_admitted_in_order(engine, model, held, alice, session):
    async with socket(alice, session) as client:
        for number in range(10):
            await client.say("turn.start", request_id=str(uuid4()), input=f"{number}", multitask="enqueue")
        for _ in range(10):
            await client.until("response")
    runs = [run async for run in Run.objects.order_by("queue_place")]
    assert [run.input for run in runs] == [str(number) for number in range(10)]


async def test_a_refusal_of_the_engine_comes_as_an_error_frame(engine, model, held, alice, session):
    async with socket(alice, session) as client:
        run = (await client.ask("turn.start", input="hello"))["result"]["id"]
        await held.reached()
        assert (await client.ask("turn.start", request_id=UNKNOWN, input="more"))["code"] == "run_active"
        assert (await client.ask("run.answer", run=run, answers={"q": 1}))["code"] == "not_waiting"
        assert (await client.ask("run.resume", run=run))["code"] == "not_interrupted"
        assert (await client.ask("run.dismiss", run=run))["code"] == "not_interrupted"
        assert (await client.ask("run.resume", run=UNKNOWN))["code"] == "not_found"


async def test_a_question_is_answered_over_the_socket(engine, model, alice, session):
    model.script.add(tool_call("ask", question="Now?"), say("As you wish."))
    async with socket(alice, session) as client:
        run = (await client.ask("turn.start", input="hello"))["result"]["id"]
        waiting = await client.event("run.waiting")
        (question,) = waiting["data"]["questions"]
        answered = await client.ask("run.answer", run=run, answers={question["id"]: "Yes"})
        assert answered["result"]["id"] == run
        await client.event("run.completed")


async def test_bob_reaches_nothing_of_alices_through_his_own_socket(engine, model, held, alice, bob, session):
    own = await in_thread(operations.create_session, bob)
    run = await in_thread(operations.start_turn, alice, session, "hello")
    await held.reached()
    async with socket(bob, own["id"]) as client:
        for kind, fields in [
            ("agent.cancel", {"session_id": session}),
            ("run.answer", {"run": run["id"], "answers": {"q": 1}}),
            ("run.resume", {"run": run["id"]}),
            ("run.retry", {"run": run["id"]}),
            ("run.dismiss", {"run": run["id"]}),
        ]:
            foreign = await client.ask(kind, **fields)
            unknown = await client.ask(
                kind, **{name: UNKNOWN if name != "answers" else value for name, value in fields.items()}
            )
            assert foreign["code"] == "not_found"
            assert foreign == unknown
    assert (await in_thread(operations.get_run, alice, run["id"]))["status"] == "running"


async def test_the_cursor_brings_exactly_what_was_missed(engine, model, held, alice, session):
    run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
    async with socket(alice, session, f"?run={run}&after=0") as client:
        before = [(await client.until("run.event"))["event"]]
        while before[-1]["type"] != "message.delta":
            before.append((await client.until("run.event"))["event"])
    held.open()
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status="completed").exists))
    async with socket(alice, session, f"?run={run}&after={before[-1]['seq']}") as client:
        after = [(await client.until("run.event"))["event"]]
        while after[-1]["type"] != "run.completed":
            after.append((await client.until("run.event"))["event"])
    log = await in_thread(operations.events, alice, run)
    assert before + after == log["events"]


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, "%00"])
async def test_a_cursor_that_is_none_is_said_to_be_invalid(engine, alice, session, after):
    async with socket(alice, session, f"?run={UNKNOWN}&after={after}") as client:
        assert (await client.frame())["code"] == "invalid"
        assert await client.closed() == 1000


@pytest.mark.parametrize("run", [UNKNOWN, "no-uuid", "%00"])
async def test_a_cursor_into_an_unknown_run_is_not_found(engine, alice, session, run):
    async with socket(alice, session, f"?run={run}&after=1") as client:
        assert await client.closed() == 4404
