"""The WebSocket consumers: who gets in, what is said, how a socket ends, and that it ends nothing else."""

import asyncio
import json
import logging
import threading
from contextlib import AsyncExitStack
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import OperationalError

from chat.access import logins, open_connections, tokens
from chat.websocket import base_consumer, frames, routing
from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.live import follow
from runs.live.follow import Event, SessionChanged, SummaryChanged
from runs.models import Run
from tests.chat.live import PATIENT, Socket, bearer, call, eventually, socket
from tests.fakes import Hold, Marks, Round, ScriptedModel, plain_graph, say, text, tools
from tests.fakes import call as tool_call

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN = "5c5b2f6e-7d0e-4a53-9d0b-000000000000"  # the same in every process that collects the tests
HOST = {"host": "chat.example"}


@pytest.fixture(autouse=True)
def hosts(settings):
    settings.ALLOWED_HOSTS = ["testserver", "chat.example"]


@pytest.fixture
def model(serve, tmp_path):
    """The model behind the default agent; its gates are opened at the end."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model):
    """A first turn that stops in mid-answer, at the gate that this is."""
    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")


@pytest.fixture
def session(transactional_db, alice):
    return str(operations.create_session(alice)["id"])


def cookie_of(user) -> dict[str, str]:
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return {"cookie": f"sessionid={session.session_key}"}


class TestHandshake:
    """Who gets in."""

    async def attempt(self, path: str, headers: dict[str, str]) -> int | None:
        """How it ends: None (open), 403 (refused before it was accepted), or the code it is closed with."""
        client = Socket(path, headers)
        accepted, _ = await client.connect(PATIENT)
        if not accepted:
            await client.wait(PATIENT)
            return 403
        message = await client.receive_output(PATIENT)
        if message["type"] == "websocket.close":
            await client.wait(PATIENT)
            return message["code"]
        await client.disconnect(timeout=PATIENT)
        return None

    @pytest.mark.parametrize(
        ("origin", "expected"),
        [
            ("http://chat.example", None),
            ("https://chat.example", None),
            ("HTTPS://Chat.Example", None),
            ("http://chat.example:8001", 403),
            ("http://evil.example", 403),
            ("http://chat.example.evil.example", 403),
            ("http://evil.example/chat.example", 403),
            ("http://chat.example@evil.example", 403),
            ("http://chat.example/", 403),
            ("http://chat.example/path", 403),
            ("http://chat.example?", 403),
            ("http://chat.example#part", 403),
            ("ftp://chat.example", 403),
            ("null", 403),
            ("", 403),
            ("http://[broken", 403),
            (None, 403),
        ],
    )
    async def test_with_a_cookie_the_origin_must_be_ours(self, engine, alice, session, origin, expected):
        headers = {**HOST, **await in_thread(cookie_of, alice)}
        if origin is not None:
            headers["origin"] = origin
        assert await self.attempt(f"/ws/sessions/{session}/", headers) == expected

    async def test_our_own_host_behind_a_tls_proxy(self, engine, alice, session, settings):
        cookie = await in_thread(cookie_of, alice)
        path = f"/ws/sessions/{session}/"
        behind = {"host": "testserver", "origin": "https://chat.example", **cookie}
        assert await self.attempt(path, behind) == 403
        settings.CSRF_TRUSTED_ORIGINS = ["https://*.chat.example", "https://chat.example"]
        assert await self.attempt(path, behind) is None
        assert await self.attempt(path, behind | {"origin": "https://eu.chat.example"}) is None
        assert await self.attempt(path, behind | {"origin": "http://chat.example"}) == 403
        assert await self.attempt(path, behind | {"origin": "https://chat.example/path"}) == 403

    async def test_a_token_needs_no_origin_but_a_foreign_one_is_refused(self, engine, alice, session):
        token = await bearer(alice)
        path = f"/ws/sessions/{session}/"
        assert await self.attempt(path, token) is None
        assert await self.attempt(path, {**token, **HOST, "origin": "http://chat.example"}) is None
        assert await self.attempt(path, {**token, "origin": "http://evil.example"}) == 403

    @pytest.mark.parametrize(
        "path", ["/ws/", "/ws/nothing/", "/", "/ws/sessions", "/ws/sessions/a/b/", "/api/sessions/"]
    )
    async def test_an_unknown_path_is_refused_without_a_traceback(self, engine, alice, path, caplog):
        assert await self.attempt(path, await bearer(alice)) == 403
        assert not caplog.records

    async def test_without_a_login_nobody_gets_in(self, engine, alice, session):
        path = f"/ws/sessions/{session}/"
        ours = {**HOST, "origin": "http://chat.example"}
        token = (await bearer(alice))["authorization"].removeprefix("Bearer ")
        for headers in (
            {},
            ours,
            {**ours, "cookie": "sessionid=unknownunknownunknown"},
            {**ours, "cookie": "sessionid=%00"},
            {"authorization": "Bearer nonsense"},
            {"authorization": "Bearer"},
            {"authorization": f"Token {token}"},
        ):
            assert await self.attempt(path, headers) == 403
        assert await self.attempt(f"{path}?token={token}", {}) == 403
        assert await self.attempt("/ws/sessions/", ours) == 403

    async def test_a_login_of_before_a_password_change_is_none(self, engine, alice, session):
        headers = {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, alice)}
        alice.set_password("another")
        await alice.asave()
        assert await self.attempt(f"/ws/sessions/{session}/", headers) == 403

    async def test_foreign_unknown_and_malformed_sessions_get_the_same_close(self, engine, bob, session):
        token = await bearer(bob)
        for unreachable in (session, UNKNOWN, "no-uuid", "%00"):
            assert await self.attempt(f"/ws/sessions/{unreachable}/", token) == 4404

    @pytest.mark.parametrize("by", ["cookie", "token"])
    async def test_while_the_database_is_unavailable_a_handshake_is_answered_with_503(
        self, engine, alice, session, by, monkeypatch, caplog
    ):
        ours = {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, alice)}
        headers = await bearer(alice) if by == "token" else ours
        monkeypatch.setattr(logins, {"cookie": "by_session", "token": "by_token"}[by], unavailable)
        assert await self.answer_unavailable(f"/ws/sessions/{session}/", headers)
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    async def test_a_database_that_says_nothing_holds_up_no_handshake(
        self, engine, alice, session, monkeypatch
    ):
        may_answer = threading.Event()
        headers = await bearer(alice)
        monkeypatch.setattr(routing, "LOGIN_WITHIN", 0.05)
        monkeypatch.setattr(logins, "by_token", lambda token: may_answer.wait(PATIENT))
        try:
            assert await self.answer_unavailable(f"/ws/sessions/{session}/", headers)
        finally:
            may_answer.set()

    async def answer_unavailable(self, path, headers):
        """Whether it is answered as REST would, with a 503 and a sentence."""
        client = Socket(path, headers)
        await client.send_input({"type": "websocket.connect"})
        start, content = [await client.receive_output(PATIENT) for _ in range(2)]
        await client.wait(PATIENT)
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 503)
        assert (b"Retry-After", b"1") in start["headers"]
        told = json.loads(content["body"])["error"]
        return told == {
            "code": "unavailable",
            "message": "The database does not answer. Try again in a moment.",
        }

    async def test_sockets_are_limited_for_each_user(self, engine, alice, bob, session, monkeypatch):
        monkeypatch.setitem(open_connections.LIMITS, open_connections.Kind.SOCKET, 2)
        async with socket(alice, session), socket(alice):
            assert await self.attempt("/ws/sessions/", await bearer(alice)) == 4429
            async with socket(bob):
                pass
        async with socket(alice) as again:
            await again.say("ping")
            assert (await again.frame())["type"] == "pong"


class TestFrames:
    """What a client says that is not right."""

    @pytest.mark.parametrize(
        "sent",
        [
            "{", "nonsense", "[]", '"x"', "123", "{}", '{"type": 1}', '{"type": null}', '{"type": ""}',
            '{"type": "nothing"}', '{"type": "run.event"}', '{"type": "turn.start"}', '{"type": "__init__"}',
            '{"type": "turn.start", "request_id": 5, "input": "x"}',
            '{"type": "turn.start", "request_id": "no-uuid", "input": "x"}',
            '{"type": "agent.cancel"}', '{"type": "agent.cancel", "session_id": 5}',
            '{"type": "run.answer", "run": [], "answers": {}}', '{"type": "run.resume", "run": "x"}',
            '{"type": "ping", "request_id": {}}', '{"type": "ping", "x": NaN}',
            "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "1" * 5000, b"\x00\xff", b"{}",
        ],
        ids=lambda sent: repr(sent[:40]),
    )  # fmt: skip
    async def test_a_wrong_frame_gets_an_error_and_the_socket_stays(
        self, engine, alice, session, sent, caplog
    ):
        async with socket(alice, session) as client:
            await client.until("session.state_changed")
            kind = "bytes" if isinstance(sent, bytes) else "text"
            await client.send_input({"type": "websocket.receive", kind: sent})
            error = await client.frame()
            assert (error["type"], error["code"]) == ("error", "invalid")
            assert error["message"]
            await client.say("ping")
            assert await client.frame() == {"type": "pong"}
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    async def test_an_empty_frame_gets_an_error(self, engine, alice, session):
        async with socket(alice, session) as client:
            await client.send_input({"type": "websocket.receive", "text": ""})
            assert (await client.until("error"))["code"] == "invalid"

    async def test_a_frame_over_the_limit_closes_with_1009(self, engine, alice, session):
        async with socket(alice, session) as client:
            await client.send_to("x" * (base_consumer.FRAME_LIMIT + 1))
            assert await client.closed() == 1009

    @pytest.mark.parametrize(
        ("frame", "field"),
        [
            ({"type": "turn.start", "request_id": UNKNOWN, "input": "a\0b"}, "input"),
            ({"type": "turn.start", "request_id": UNKNOWN, "input": "a\ud800b"}, "input"),
            ({"type": "turn.start", "request_id": UNKNOWN, "input": "  "}, "input"),
            ({"type": "turn.start", "request_id": UNKNOWN, "input": 5}, "input"),
            ({"type": "turn.start", "request_id": UNKNOWN, "input": "x", "multitask": "\0"}, "multitask"),
            (
                {"type": "turn.start", "request_id": UNKNOWN, "input": "x", "on_disconnect": "cancel"},
                "on_disconnect",
            ),
            ({"type": "agent.cancel", "request_id": "\0", "session_id": UNKNOWN}, "request_id"),
            ({"type": "agent.cancel", "session_id": UNKNOWN, "reason": "\0"}, "reason"),
            ({"type": "run.answer", "run": UNKNOWN, "answers": {"q": {"\0": 1}}}, "answers"),
            ({"type": "run.answer", "run": UNKNOWN, "answers": [[[]]]}, "answers"),
            ({"type": "run.retry", "run": UNKNOWN, "input": "\ud800"}, "input"),
        ],
    )
    async def test_text_that_cannot_be_stored_is_refused_naming_the_field(
        self, engine, alice, session, frame, field
    ):
        async with socket(alice, session) as client:
            await client.send_json_to(frame)
            error = await client.until("error")
            assert error["code"] == "invalid"
            assert field in error["message"]
            assert error["request_id"] == frame.get("request_id")

    async def test_a_flood_is_refused_with_an_error_and_harms_nobody(self, engine, alice, bob, session):
        others = await in_thread(operations.create_session, bob)
        async with socket(alice, session) as flooding, socket(bob, others["id"]) as other:
            for _ in range(1000):
                await flooding.say("ping")
            error = await flooding.until("error")
            assert (error["code"], error["request_id"]) == ("throttled", None)
            await other.say("ping")
            await other.until("pong")

            async def is_answered() -> bool:
                await flooding.say("ping")
                return (await flooding.until("pong", "error"))["type"] == "pong"

            await eventually(is_answered)

    async def test_a_flood_that_goes_on_is_closed(self, engine, alice, session, monkeypatch):
        monkeypatch.setattr(base_consumer.FrameRateLimit, "patience", 100)
        monkeypatch.setattr(
            base_consumer.FrameRateLimit, "per_second", 0.0
        )  # however slowly this machine reads
        async with socket(alice, session) as client:
            for _ in range(400):
                await client.say("ping")
            assert await client.closed() == 4429

    def test_a_large_frame_costs_more_than_a_small_one(self, monkeypatch):
        monkeypatch.setattr("chat.websocket.base_consumer.monotonic", lambda: 0.0)
        small, large = base_consumer.FrameRateLimit(), base_consumer.FrameRateLimit()
        assert sum(small.admits("x") for _ in range(300)) > 5 * sum(
            large.admits("x" * 500_000) for _ in range(300)
        )

    async def test_the_list_takes_no_commands(self, engine, alice, session):
        async with socket(alice) as client:
            await client.say("turn.start", request_id=UNKNOWN, input="x")
            assert (await client.frame())["code"] == "invalid"
            await client.say("ping")
            assert await client.frame() == {"type": "pong"}


class TestTurns:
    """A turn over a socket, from its start to its end."""

    async def test_a_socket_gets_the_session_first_and_then_every_event_once(
        self, engine, model, alice, session
    ):
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
        assert (
            await call(alice, "GET", f"runs/{events[0]['run']}/events/", accept="application/json")
        ).json()["events"] == events

    async def test_a_message_sent_twice_is_one_turn(self, engine, model, held, alice, session):
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

    async def test_ping_and_stop_are_heard_while_a_tool_blocks(self, engine, model, alice, bob, session):
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

    async def test_two_starts_in_a_row_are_admitted_in_order(self, engine, model, held, alice, session):
        async with socket(alice, session) as client:
            for number in range(10):
                await client.say(
                    "turn.start", request_id=str(uuid4()), input=f"{number}", multitask="enqueue"
                )
            for _ in range(10):
                await client.until("response")
        runs = [run async for run in Run.objects.order_by("queue_place")]
        assert [run.input for run in runs] == [str(number) for number in range(10)]

    async def test_a_refusal_of_the_engine_comes_as_an_error_frame(self, engine, model, held, alice, session):
        async with socket(alice, session) as client:
            run = (await client.ask("turn.start", input="hello"))["result"]["id"]
            await held.reached()
            assert (await client.ask("turn.start", request_id=UNKNOWN, input="more"))["code"] == "run_active"
            assert (await client.ask("run.answer", run=run, answers={"q": 1}))["code"] == "not_waiting"
            assert (await client.ask("run.resume", run=run))["code"] == "not_interrupted"
            assert (await client.ask("run.dismiss", run=run))["code"] == "not_interrupted"
            assert (await client.ask("run.resume", run=UNKNOWN))["code"] == "not_found"

    async def test_a_question_is_answered_over_the_socket(self, engine, model, alice, session):
        model.script.add(tool_call("ask", question="Now?"), say("As you wish."))
        async with socket(alice, session) as client:
            run = (await client.ask("turn.start", input="hello"))["result"]["id"]
            waiting = await client.event("run.waiting")
            (question,) = waiting["data"]["questions"]
            answered = await client.ask("run.answer", run=run, answers={question["id"]: "Yes"})
            assert answered["result"]["id"] == run
            await client.event("run.completed")

    async def test_bob_reaches_nothing_of_alices_through_his_own_socket(
        self, engine, model, held, alice, bob, session
    ):
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


class TestReturning:
    """A client that comes back with a cursor."""

    async def test_the_cursor_brings_exactly_what_was_missed(self, engine, model, held, alice, session):
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
    async def test_a_cursor_that_is_none_is_said_to_be_invalid(self, engine, alice, session, after):
        async with socket(alice, session, f"?run={UNKNOWN}&after={after}") as client:
            assert (await client.frame())["code"] == "invalid"
            assert await client.closed() == 1000

    @pytest.mark.parametrize("run", [UNKNOWN, "no-uuid", "%00"])
    async def test_a_cursor_into_an_unknown_run_is_not_found(self, engine, alice, session, run):
        async with socket(alice, session, f"?run={run}&after=1") as client:
            assert await client.closed() == 4404


class TestCancel:
    """``agent.cancel`` is answered when the operation has settled."""

    async def test_a_cancel_stops_the_model_and_is_answered_with_its_end(
        self, engine, model, held, alice, session
    ):
        async with socket(alice, session) as client:
            await client.ask("turn.start", input="hello")
            await held.reached()
            settled = await client.ask("agent.cancel", session_id=session, reason="enough")
        assert settled["result"]["outcome"] == "cancelled"
        assert settled["result"]["reason"] == "enough"
        assert settled["result"]["requested_by"] == "alice"
        assert settled["result"]["settled_at"]
        assert model.calls[0].outcome == "closed"

    async def test_all_who_cancel_get_the_same_operation(self, engine, model, held, alice, session):
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

    async def test_the_cancel_goes_on_when_its_client_goes(self, engine, model, alice, session):
        model.script.add(tool_call("heeding_sync", seconds=60))
        client = Socket(f"/ws/sessions/{session}/", await bearer(alice))
        await client.connect(PATIENT)
        run = (await client.ask("turn.start", input="block"))["result"]["id"]
        await client.event("tool.started")
        await client.say("agent.cancel", request_id="x", session_id=session)
        await eventually(lambda: in_thread(Run.objects.filter(cancel_requested_at__isnull=False).exists))
        await client.disconnect(timeout=PATIENT)
        await eventually(lambda: in_thread(Run.objects.filter(id=run, status="cancelled").exists))

    async def test_cancel_of_an_idle_session_says_so(self, engine, model, alice, session):
        async with socket(alice, session) as client:
            settled = await client.ask("agent.cancel", session_id=session)
        assert (settled["result"]["id"], settled["result"]["outcome"]) == (None, "already_finished")

    async def test_revisions_only_grow_and_false_is_sent_as_false(self, engine, model, held, alice, session):
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
        self, engine, model, held, alice, session, outcome, monkeypatch
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


class TestEnds:
    """How a socket ends, and that nothing stays behind."""

    async def test_a_socket_that_closes_ends_nothing(self, engine, model, held, alice, session):
        async with socket(alice, session) as client:
            run = (await client.ask("turn.start", input="hello"))["result"]["id"]
            await held.reached()
        held.open()
        await eventually(lambda: in_thread(Run.objects.filter(id=run, status="completed").exists))

    async def test_a_failing_send_ends_the_socket_and_nothing_else(
        self, engine, model, held, alice, session, caplog
    ):
        before = tasks()
        async with socket(alice, session) as good:
            await good.until("session.state_changed")
            with_good = tasks()
            vanished = [await vanish(alice, session, after=number % 4) for number in range(20)]
            await good.ask("turn.start", input="hello")
            await held.reached()
            held.open()
            await good.event("run.completed")
            await asyncio.wait(vanished, timeout=PATIENT)
            assert all(task.done() and task.exception() is None for task in vanished)
            assert open_connections.count()[open_connections.Kind.SOCKET] == 1
            assert this_process.engine.hub.followers == 1
            await eventually(lambda: tasks() <= with_good)
        await eventually(lambda: this_process.engine.hub.followers == 0)
        await eventually(lambda: tasks() <= before | {"watch logins"})
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    async def test_a_fault_in_a_handler_closes_with_1011_and_cleans_up(
        self, engine, alice, session, monkeypatch, caplog
    ):
        def broken(*args, **kwargs):
            raise RuntimeError("broken")

        monkeypatch.setattr(operations, "start_turn", broken)
        async with socket(alice, session) as client:
            await client.say("turn.start", request_id=UNKNOWN, input="x")
            assert await client.closed() == 1011
        assert open_connections.count()[open_connections.Kind.SOCKET] == 0
        await eventually(lambda: this_process.engine.hub.followers == 0)
        assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1

    @pytest.mark.parametrize("where", ["following", "a command", "the end of a cancel"])
    async def test_while_the_database_is_unavailable_a_socket_is_closed_with_1013(
        self, engine, model, held, alice, session, where, monkeypatch, caplog
    ):
        async with socket(alice, session) as client:
            await client.until("session.state_changed")
            await client.ask("turn.start", input="hello")
            await held.reached()
            caplog.clear()
            if where == "following":
                monkeypatch.setattr(follow, "_read_session", unavailable)
                next(iter(this_process.engine.hub._sessions[UUID(session)])).suspect_loss()
            elif where == "a command":
                monkeypatch.setattr(operations, "cancel_session", unavailable)
                await client.say("agent.cancel", session_id=session)
            else:
                monkeypatch.setattr(follow, "_cancellation", unavailable)
                await client.say("agent.cancel", session_id=session)
            assert await client.closed() == 1013
        assert open_connections.count()[open_connections.Kind.SOCKET] == 0
        await eventually(lambda: this_process.engine.hub.followers == 0)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    async def test_a_socket_that_the_server_kills_cleans_up(self, engine, alice, session):
        client = Socket(f"/ws/sessions/{session}/", await bearer(alice))
        await client.connect(PATIENT)
        await client.until("session.state_changed")
        client.future.cancel()
        await asyncio.wait([client.future])
        assert open_connections.count()[open_connections.Kind.SOCKET] == 0
        await eventually(lambda: this_process.engine.hub.followers == 0)

    async def test_a_deleted_session_is_said_to_be_gone(self, engine, model, alice, session):
        async with socket(alice, session) as client, socket(alice) as overview:
            await client.until("session.state_changed")
            assert (await call(alice, "DELETE", f"sessions/{session}/")).status == 204
            assert await client.until("session.deleted") == {"type": "session.deleted", "id": session}
            assert await client.closed() == 1000
            assert await overview.until("session.deleted") == {"type": "session.deleted", "id": session}

    async def test_a_server_without_its_engine_closes_with_1012(self, alice, session):
        async with socket(alice, session) as client, socket(alice) as overview:
            assert await client.closed() == 1012
            assert await overview.closed() == 1012

    async def test_a_server_that_shuts_down_closes_with_1012(self, engine, alice, session):
        async with socket(alice, session) as client, socket(alice) as overview:
            open_connections.end_all()
            assert await client.closed() == 1012
            assert await overview.closed() == 1012


class TestLogin:
    """An open socket ends soon after its login does."""

    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch):
        assert open_connections.LOGIN_CHECK_INTERVAL < 4  # of the five seconds that are promised
        monkeypatch.setattr(open_connections, "LOGIN_CHECK_INTERVAL", 0.05)

    async def with_cookie(self, user) -> dict[str, str]:
        return {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, user)}

    async def test_logout_ends_the_sockets_of_that_login_only(self, engine, alice, session):
        leaving, staying = await self.with_cookie(alice), await self.with_cookie(alice)
        async with socket(alice, session, **leaving) as ended, socket(alice, session, **staying) as kept:
            key = leaving["cookie"].removeprefix("sessionid=")
            await in_thread(SessionStore(key).delete)
            assert await ended.closed() == 4401
            await kept.say("ping")
            await kept.until("pong")

    async def test_a_password_change_ends_them(self, engine, alice, session):
        async with socket(alice, session, **await self.with_cookie(alice)) as client:
            alice.set_password("another")
            await alice.asave()
            assert await client.closed() == 4401

    @pytest.mark.parametrize("by", ["cookie", "token"])
    async def test_a_deactivation_ends_them(self, engine, alice, session, by):
        headers = await self.with_cookie(alice) if by == "cookie" else await bearer(alice)
        async with socket(alice, session, **headers) as client, socket(alice, **headers) as overview:
            alice.is_active = False
            await alice.asave()
            assert await client.closed() == 4401
            assert await overview.closed() == 4401

    async def test_a_revoked_token_ends_its_sockets(self, engine, alice, session):
        async with socket(alice, session) as client:
            token = await in_thread(tokens.tokens_of(alice).get)
            await in_thread(tokens.revoke, alice, token.id)
            assert await client.closed() == 4401

    async def test_a_look_that_fails_ends_nobody(self, engine, alice, session, monkeypatch):
        looks = iter([ConnectionError("the database is unavailable"), True, True])

        def look(login):
            found = next(looks, False)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr("chat.access.logins.still_holds", look)
        async with socket(alice, session) as client:
            assert await client.closed() == 4401
        assert next(looks, None) is None


class TestList:
    """The user's own list, live."""

    async def test_the_list_shows_changes_of_ones_own_sessions_only(
        self, engine, model, alice, bob, session, monkeypatch
    ):
        began = []
        summaries = follow._summaries
        monkeypatch.setattr(follow, "_summaries", lambda *of: (summaries(*of), began.append(of))[0])
        async with socket(alice) as client, socket(bob) as other:
            await eventually(lambda: len(began) == 2)  # both know what there was before the change
            await in_thread(operations.rename_session, alice, session, "Plans")
            summary = await client.until("session.summary", title="Plans")
            assert sorted(summary) == ["id", "status", "title", "type", "updated_at"]
            assert summary["id"] == session
            await other.say("ping")
            assert await other.frame() == {"type": "pong"}

    async def test_a_session_that_is_too_old_to_be_watched_is_told_to_be_deleted(
        self, engine, alice, session, monkeypatch
    ):
        """A page shows as many as its reader asks for."""
        monkeypatch.setattr(follow, "SUMMARIES", 2)
        newer = [(await in_thread(operations.create_session, alice))["id"] for _ in range(3)]
        began = []
        summaries = follow._summaries
        monkeypatch.setattr(follow, "_summaries", lambda *of: (summaries(*of), began.append(of))[0])
        async with socket(alice) as client:
            await eventually(lambda: began)
            for deleted in (session, newer[2]):
                await operations.delete_session(alice, deleted)
                frame = await client.until("session.deleted")
                assert frame == {"type": "session.deleted", "id": deleted}
            await in_thread(operations.rename_session, alice, newer[0], "Plans")
            assert (await client.frame())["type"] == "session.summary"  # and each was told once

    async def test_the_list_has_no_frames_of_cancels(self, engine, model, held, alice, session):
        async with socket(alice) as client:
            await in_thread(operations.start_turn, alice, session, "hello")
            await held.reached()
            await call(alice, "POST", f"sessions/{session}/cancel/", {"wait": 20})
            seen = []
            while not seen or seen[-1].get("status") != "idle":
                seen.append(await client.frame())
        assert {frame["type"] for frame in seen} == {"session.summary"}


def unavailable(*args, **options):
    raise OperationalError("the server closed the connection unexpectedly")


def tasks() -> set[str]:
    """The names of this loop's tasks but for the one that asks."""
    return {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}


async def vanish(user, session: str, after: int) -> asyncio.Task[None]:
    """A client whose connection breaks after so many frames, so that the next send raises."""
    from tests.chat.live import application

    received = 0

    async def receive():
        if received == 0:
            return {"type": "websocket.connect"}
        return await asyncio.Event().wait()  # the server learns of the break by its send alone

    async def send(message):
        nonlocal received
        received += 1
        if received > after + 1:
            raise ConnectionResetError("reset by peer")

    headers = [
        (name.encode(), value.encode())
        for name, value in {**await bearer(user), "host": "testserver"}.items()
    ]
    scope = {"type": "websocket", "path": f"/ws/sessions/{session}/", "query_string": b"", "headers": headers}
    return asyncio.create_task(application()(scope, receive, send), name="vanishing")


def test_the_frame_of_an_event_is_json():
    event = {"run": "r", "seq": 1, "type": "message.delta", "data": {"text": 'a "b" \u2028'}, "at": "now"}
    item = Event("r", 1, "message.delta", json.dumps(event), terminal=False)
    assert json.loads(frames.encode(item)) == {"type": "run.event", "event": event}


def test_the_frame_of_a_long_text_is_no_longer_than_the_text_in_utf_8():
    session = {"queued": [{"input": "😀é" * 1000}]}
    frame = frames.encode(SessionChanged(session))
    assert len(frame.encode()) < 1000 * len("😀é".encode()) + 100
    assert json.loads(frame) == {"type": "session.state_changed", "session": session}


def test_a_frame_can_be_sent_whatever_is_in_it():
    frame = frames.encode(SummaryChanged({"title": "half \ud83d, whole \ud83d\ude00"}))
    assert json.loads(frame.encode())["title"] == "half \ufffd, whole 😀"
