"""What a client may say, what it is told when it says anything else, and how a frame is written."""

import json
import logging

import pytest

from chat.websocket import base_consumer, frames
from runs import operations
from runs.foundation.database import in_thread
from runs.live.follow import Event, SessionChanged, SummaryChanged
from tests.chat.live import eventually, socket
from tests.chat.websocket.handshakes import UNKNOWN

pytestmark = pytest.mark.django_db(transaction=True)


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
async def test_a_wrong_frame_gets_an_error_and_the_socket_stays(engine, alice, session, sent, caplog):
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


async def test_an_empty_frame_gets_an_error(engine, alice, session):
    async with socket(alice, session) as client:
        await client.send_input({"type": "websocket.receive", "text": ""})
        assert (await client.until("error"))["code"] == "invalid"


async def test_a_frame_over_the_limit_closes_with_1009(engine, alice, session):
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
async def test_text_that_cannot_be_stored_is_refused_naming_the_field(engine, alice, session, frame, field):
    async with socket(alice, session) as client:
        await client.send_json_to(frame)
        error = await client.until("error")
        assert error["code"] == "invalid"
        assert field in error["message"]
        assert error["request_id"] == frame.get("request_id")


async def test_a_flood_is_refused_with_an_error_and_harms_nobody(engine, alice, bob, session):
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


async def test_a_flood_that_goes_on_is_closed(engine, alice, session, monkeypatch):
    monkeypatch.setattr(base_consumer.FrameRateLimit, "patience", 100)
    monkeypatch.setattr(base_consumer.FrameRateLimit, "per_second", 0.0)  # however slowly this machine reads
    async with socket(alice, session) as client:
        for _ in range(400):
            await client.say("ping")
        assert await client.closed() == 4429


def test_a_large_frame_costs_more_than_a_small_one(monkeypatch):
    monkeypatch.setattr("chat.websocket.base_consumer.monotonic", lambda: 0.0)
    small, large = base_consumer.FrameRateLimit(), base_consumer.FrameRateLimit()
    assert sum(small.admits("x") for _ in range(300)) > 5 * sum(
        large.admits("x" * 500_000) for _ in range(300)
    )


async def test_the_list_takes_no_commands(engine, alice, session):
    async with socket(alice) as client:
        await client.say("turn.start", request_id=UNKNOWN, input="x")
        assert (await client.frame())["code"] == "invalid"
        await client.say("ping")
        assert await client.frame() == {"type": "pong"}


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
