"""Event streams: complete, resumable, told when their login ends, and of no consequence to the run."""

import asyncio

import pytest
from django.db import OperationalError

from chat.access import open_connections, run_connections, tokens
from chat.access.logins import Login
from chat.api import streams
from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.models import Cancellation, Run
from runs.states import RunStatus
from tests.chat.api.programs import UNKNOWN, a_run
from tests.chat.live import Http, bearer, call, eventually, stream

pytestmark = pytest.mark.django_db(transaction=True)


async def start(alice, session, **options) -> str:
    return (await in_thread(operations.start_turn, alice, session, "hello", **options))["id"]


async def ended(run: str, status: str) -> None:
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status=status).exists))


def all_let_go() -> bool:
    return (
        open_connections.count()[open_connections.Kind.STREAM] == 0 and this_process.engine.hub.followers == 0
    )


class TestReading:
    """GET /api/runs/{id}/events/"""

    async def test_the_stream_has_every_event_in_order_and_ends(self, engine, model, alice, session):
        run = await start(alice, session)
        answer, http = await stream(alice, f"runs/{run}/events/")
        assert answer.status == 200
        events = await http.events()
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert events[-1]["type"] == "run.completed"
        log = await call(alice, "GET", f"runs/{run}/events/", accept="application/json")
        assert log.json() == {"events": events, "last_seq": len(events), "done": True}
        await eventually(all_let_go)

    async def test_nothing_on_the_way_may_hold_the_stream_back(self, engine, model, held, alice, session):
        run = await start(alice, session)
        answer, http = await stream(alice, f"runs/{run}/events/", **{"accept-encoding": "gzip, br"})
        assert answer.headers["content-type"] == "text/event-stream"
        assert "no-cache" in answer.headers["cache-control"]
        assert "no-transform" in answer.headers["cache-control"]
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
        assert "content-length" not in answer.headers
        assert await http.block() == {"retry": "1000"}
        while (await http.event())["type"] != "message.delta":
            pass  # the delta arrives while the model is still held
        await http.disconnect()

    @pytest.mark.parametrize(
        "accept",
        ["text/event-stream", "*/*", "", "text/html,*/*;q=0.8", "application/json, text/event-stream"],
    )
    async def test_all_but_json_alone_get_a_stream(self, engine, alice, session, accept):
        run = await in_thread(a_run, alice, RunStatus.QUEUED, session)
        answer, http = await stream(alice, f"runs/{run}/events/", accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        await http.disconnect()

    async def test_no_accept_header_gets_a_stream(self, engine, alice, session):
        run = await in_thread(a_run, alice, RunStatus.QUEUED, session)
        http = Http("GET", f"/api/runs/{run}/events/", None, await bearer(alice))
        assert (await http.begin()).headers["content-type"] == "text/event-stream"
        await http.disconnect()

    @pytest.mark.parametrize("by", ["header", "query"])
    async def test_a_client_that_comes_back_gets_what_it_missed(self, engine, model, alice, session, by):
        run = await start(alice, session)
        await ended(run, "completed")
        _, whole = await stream(alice, f"runs/{run}/events/")
        events = await whole.events()
        for seen in (1, 3, len(events) - 1):
            query, headers = ("", {"last-event-id": str(seen)}) if by == "header" else (f"?after={seen}", {})
            _, rest = await stream(alice, f"runs/{run}/events/{query}", **headers)
            assert await rest.events() == events[seen:]

    async def test_the_header_counts_more_than_the_address_it_came_back_to(
        self, engine, model, alice, session
    ):
        run = await start(alice, session)
        await ended(run, "completed")
        _, http = await stream(alice, f"runs/{run}/events/?after=0", **{"last-event-id": "2"})
        assert (await http.events())[0]["seq"] == 3

    async def test_at_or_past_the_end_there_is_nothing(self, engine, model, alice, session):
        run = await start(alice, session)
        await ended(run, "completed")
        last = (await in_thread(operations.get_run, alice, run))["last_seq"]
        for after in (last, last + 1, 2**31 - 1):
            answer = await call(alice, "GET", f"runs/{run}/events/?after={after}", accept="text/event-stream")
            assert (answer.status, answer.body) == (204, b"")

    @pytest.mark.parametrize("after", ["x", "-1", "1.5", "%00", "9" * 30])
    async def test_what_is_no_number_is_invalid(self, engine, alice, session, after):
        run = await in_thread(a_run, alice, RunStatus.QUEUED, session)
        in_address = await call(alice, "GET", f"runs/{run}/events/?after={after}")
        in_header = await call(alice, "GET", f"runs/{run}/events/", **{"last-event-id": after})
        for answer in (in_address, in_header):
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid")

    async def test_pages_lead_through_the_whole_log(self, engine, model, alice, session):
        run = await start(alice, session)
        await ended(run, "completed")
        seen, after, done = [], 0, False
        while not done:
            page = (
                await call(
                    alice, "GET", f"runs/{run}/events/?limit=2&after={after}", accept="application/json"
                )
            ).json()
            seen += [event["seq"] for event in page["events"]]
            after, done = page["last_seq"], page["done"]
        assert seen == list(range(1, len(seen) + 1))

    async def test_an_idle_stream_is_kept_alive(self, engine, model, held, alice, session, monkeypatch):
        monkeypatch.setattr(run_connections, "KEEP_ALIVE", 0.05)
        run = await start(alice, session)
        await held.reached()
        _, http = await stream(alice, f"runs/{run}/events/")
        while "" not in (block := await http.block()):
            pass
        assert block == {"": " keep-alive"}
        held.open()
        events = await http.events()
        assert events[-1]["type"] == "run.completed"

    async def test_many_followers_each_get_every_event(self, engine, model, held, alice, session):
        run = await start(alice, session)
        followers = [(await stream(alice, f"runs/{run}/events/"))[1] for _ in range(10)]
        held.open()
        first, *others = await asyncio.gather(*(follower.events() for follower in followers))
        assert first[-1]["type"] == "run.completed"
        assert all(other == first for other in others)


class TestLeaving:
    """A stream that ends means nothing to the run, but for the one that started it and said so."""

    async def test_a_stream_that_is_left_is_produced_for_nobody(self, engine, model, held, alice, session):
        run = await start(alice, session)
        for _ in range(10):
            _, http = await stream(alice, f"runs/{run}/events/")
            await http.event()
            await http.disconnect()
        await eventually(all_let_go)
        held.open()
        await ended(run, "completed")

    async def test_a_client_may_go_while_it_is_told_that_nothing_happens(
        self, engine, model, held, alice, session, monkeypatch
    ):
        monkeypatch.setattr(run_connections, "KEEP_ALIVE", 0.05)
        run = await start(alice, session)
        await held.reached()
        login = Login(alice)
        body = aiter(
            streams.RunStream(
                login, open_connections.register(open_connections.Kind.STREAM, login), run, after=0
            )
        )
        while await anext(body) != ": keep-alive\n\n":
            pass
        await body.aclose()
        await eventually(all_let_go)

    async def test_a_closed_stream_cancels_nothing(self, engine, model, held, alice, session):
        answer, http = await stream(alice, f"sessions/{session}/runs/", {"input": "hello"})
        assert answer.status == 200
        run = answer.headers["location"].split("/")[-2]
        await held.reached()
        await http.disconnect()
        held.open()
        await ended(run, "completed")
        history = (await call(alice, "GET", f"sessions/{session}/history/")).json()
        assert history["messages"][-1]["text"] == "Hello world"

    async def test_a_stop_from_elsewhere_ends_a_resumed_stream(self, engine, model, held, alice, session):
        _, first = await stream(alice, f"sessions/{session}/runs/", {"input": "hello"})
        run = (await first.event())["run"]
        await first.disconnect()
        _, second = await stream(alice, f"runs/{run}/events/")
        await held.reached()
        stopped = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 20})
        assert (stopped.status, stopped.json()["outcome"]) == (200, "cancelled")
        assert (await second.events())[-1]["type"] == "run.cancelled"
        assert model.calls[0].outcome == "closed"

    async def test_on_disconnect_cancel_cancels_when_the_starting_stream_drops(
        self, engine, model, held, alice, session
    ):
        _, http = await stream(
            alice, f"sessions/{session}/runs/", {"input": "hello", "on_disconnect": "cancel"}
        )
        run = (await http.event())["run"]
        await held.reached()
        await http.disconnect()
        await ended(run, "cancelled")
        cancellation = await Cancellation.objects.aget()
        assert (cancellation.source, cancellation.outcome) == ("disconnect", "cancelled")

    async def test_on_disconnect_cancel_does_not_count_followers(self, engine, model, held, alice, session):
        _, starter = await stream(
            alice, f"sessions/{session}/runs/", {"input": "hello", "on_disconnect": "cancel"}
        )
        run = (await starter.event())["run"]
        _, follower = await stream(alice, f"runs/{run}/events/")
        await held.reached()
        await follower.disconnect()
        held.open()
        assert (await starter.events())[-1]["type"] == "run.completed"

    async def test_on_disconnect_cancel_does_not_count_who_repeats_the_request(
        self, engine, model, held, alice, session
    ):
        body = {"input": "hello", "on_disconnect": "cancel"}
        _, starter = await stream(alice, f"sessions/{session}/runs/", body, **{"idempotency-key": "k"})
        await starter.event()
        _, repeater = await stream(alice, f"sessions/{session}/runs/", body, **{"idempotency-key": "k"})
        await held.reached()
        await repeater.disconnect()
        held.open()
        assert (await starter.events())[-1]["type"] == "run.completed"

    async def test_on_disconnect_cancel_means_nothing_after_the_end(self, engine, model, alice, session):
        _, http = await stream(
            alice, f"sessions/{session}/runs/", {"input": "hello", "on_disconnect": "cancel"}
        )
        assert (await http.events())[-1]["type"] == "run.completed"
        assert not await Cancellation.objects.aexists()

    async def test_on_disconnect_cancel_counts_a_client_that_left_during_admission(
        self, engine, model, held, alice, session, monkeypatch
    ):
        admitted, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(function, *args, **kwargs):
            result = await in_thread(function, *args, **kwargs)
            admitted.set()
            await go_on.wait()
            return result

        headers = {"accept": "text/event-stream", **await bearer(alice)}
        body = {"input": "hello", "on_disconnect": "cancel"}
        monkeypatch.setattr(run_connections, "in_thread", slowly)
        http = Http("POST", f"/api/sessions/{session}/runs/", body, headers)
        await http.send_input({"type": "http.request", "body": http._content})
        await asyncio.wait_for(admitted.wait(), 20)
        await http.disconnect()
        monkeypatch.setattr(run_connections, "in_thread", in_thread)
        go_on.set()
        await ended((await Run.objects.aget()).id, "cancelled")
        await eventually(all_let_go)

    @pytest.mark.parametrize("how", ["resumed", "repeated"])
    async def test_a_client_may_go_before_its_stream_begins(
        self, engine, model, held, alice, session, monkeypatch, how
    ):
        """Between the place that a stream has taken and its first step, the rest of Django is at work."""
        body = {"input": "hello"}
        headers = {"accept": "text/event-stream", "idempotency-key": "k", **await bearer(alice)}
        run = await start(alice, session, key="k")
        http = (
            Http("GET", f"/api/runs/{run}/events/", None, headers)
            if how == "resumed"
            else Http("POST", f"/api/sessions/{session}/runs/", body, headers)
        )
        respond = streams.response

        def and_the_client_goes(stream):
            http.input_queue.put_nowait({"type": "http.disconnect"})
            return respond(stream)

        monkeypatch.setattr(streams, "response", and_the_client_goes)
        await http.send_input({"type": "http.request", "body": http._content})
        await http.wait(20)
        assert all_let_go()

    async def test_a_stream_that_cannot_begin_closes_its_connection(
        self, engine, model, held, alice, session, monkeypatch
    ):
        async def unavailable(*_, **__):
            raise OperationalError("the server closed the connection unexpectedly")

        await start(alice, session, key="k")
        monkeypatch.setattr(streams, "in_thread", unavailable)
        answer, _ = await stream(
            alice, f"sessions/{session}/runs/", {"input": "hello"}, **{"idempotency-key": "k"}
        )
        assert answer.status == 503
        assert all_let_go()

    async def test_the_policy_cancel_needs_a_stream(self, engine, model, alice, session):
        refused = await call(
            alice, "POST", f"sessions/{session}/runs/", {"input": "hello", "on_disconnect": "cancel"}
        )
        assert (refused.status, refused.json()["error"]["code"]) == (400, "invalid")
        assert not await Run.objects.aexists()

    async def test_a_server_that_shuts_down_ends_streams_and_cancels_nothing(
        self, engine, model, held, alice, session
    ):
        _, http = await stream(
            alice, f"sessions/{session}/runs/", {"input": "hello", "on_disconnect": "cancel"}
        )
        run = (await http.event())["run"]
        await held.reached()
        open_connections.end_all()
        assert "run.cancelled" not in [event["type"] for event in await http.events()]
        held.open()
        await ended(run, "completed")


class TestRefusals:
    """A stream that is refused is refused with the status and form of any call."""

    async def test_errors_keep_their_status(self, engine, model, held, alice, bob, session):
        await start(alice, session)
        await held.reached()
        path = f"sessions/{session}/runs/"
        for who, body, expected in [
            (alice, {"input": "more"}, (409, "run_active")),
            (alice, {"input": ""}, (400, "invalid")),
            (bob, {"input": "hello"}, (404, "not_found")),
            (None, {"input": "hello"}, (401, "unauthenticated")),
        ]:
            answer = await call(who, "POST", path, body, accept="text/event-stream")
            assert (answer.status, answer.json()["error"]["code"]) == expected
        assert (await call(alice, "GET", f"runs/{UNKNOWN}/events/")).status == 404
        await eventually(all_let_go)

    async def test_streams_are_limited_for_each_user(self, engine, model, held, alice, session, monkeypatch):
        monkeypatch.setitem(open_connections.LIMITS, open_connections.Kind.STREAM, 2)
        run = await start(alice, session)
        _, first = await stream(alice, f"runs/{run}/events/")
        _, second = await stream(alice, f"runs/{run}/events/")
        refused = await call(alice, "GET", f"runs/{run}/events/")
        assert (refused.status, refused.json()["error"]["code"]) == (429, "throttled")
        await first.disconnect()
        _, third = await stream(alice, f"runs/{run}/events/")
        assert await third.event()
        await second.disconnect()
        await third.disconnect()

    async def test_a_stream_ends_when_its_login_does(self, engine, model, held, alice, session, monkeypatch):
        monkeypatch.setattr(open_connections, "LOGIN_CHECK_INTERVAL", 0.05)
        run = await start(alice, session)
        _, http = await stream(alice, f"runs/{run}/events/")
        await held.reached()
        for token in await in_thread(lambda: list(tokens.tokens_of(alice))):
            await in_thread(tokens.revoke, alice, token.id)
        assert "run.completed" not in {event["type"] for event in await http.events()}
        held.open()
        await ended(run, "completed")
