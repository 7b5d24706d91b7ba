"""What a log says of a turn, wherever it was cut; and that a repair makes any of it sendable."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from runs.log import transcript
from runs.log.transcript import Transcript
from runs.memory.normalise import engine_mark, normalise
from runs.states import ACTIVE, TERMINAL, TERMINAL_EVENT, Effect, RunStatus, ToolStatus
from tests.fakes import unsendable

settings.load_profile("ci")  # the same examples each time

LOGS = Path(__file__).parent / "logs"


@dataclass
class Entry:
    seq: int
    type: str
    data: dict[str, Any]
    at: datetime


@dataclass
class Run:
    id: str
    status: str
    message_id: str
    input: str
    created_at: datetime


AT = datetime.fromisoformat("2026-01-01T00:00:00Z")


def old_log(name: str) -> list[tuple[Run, list[Entry]]]:
    stored = json.loads((LOGS / name).read_text())
    runs = [Run(**run | {"created_at": datetime.fromisoformat(run["created_at"])}) for run in stored["runs"]]
    logs = [
        [Entry(e["seq"], e["type"], e["data"], datetime.fromisoformat(e["at"])) for e in log]
        for log in stored["events"]
    ]
    return list(zip(runs, logs, strict=True))


def log(*events: tuple[str, dict[str, Any]], status: str = RunStatus.RUNNING) -> Transcript:
    entries = [Entry(seq, kind, data, AT) for seq, (kind, data) in enumerate(events, 1)]
    return transcript.fold(Run("run", status, "u", "question", AT), entries)


def completed(message: str, text: str, *calls: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    asked = [{"id": call, "name": "tool", "args": {}} for call in calls]
    return "message.completed", {
        "message": message,
        "text": text,
        "tool_calls": asked,
        "status": "complete",
    } | fields


def started(call: str, message: str | None = "m") -> tuple[str, dict[str, Any]]:
    return "tool.started", {"tool_call": call, "message": message, "name": "tool", "args": {}}


def test_an_old_log_still_reads_the_same():
    (lost, first), (again, second) = old_log("resumed_turn.json")
    alone = transcript.fold(lost, first)
    assert [(message.id, message.text, message.status) for message in alone.messages] == [
        ("m-1", "Let me look.", "complete"),
        ("m-2", "Everest is", "interrupted"),
    ]
    assert {call.id: (call.status, call.effect, call.started) for call in alone.calls} == {
        "c-1": ("completed", "done", True),
        "c-2": ("interrupted", "unknown", True),
        "c-3": ("interrupted", "unknown", False),
        "c-4": ("failed", "none", False),
    }
    assert alone.status == RunStatus.INTERRUPTED

    turn = transcript.fold(again, second, alone)
    assert (turn.user.id, turn.user.run_id, turn.user.text) == ("u-1", lost.id, "Which is taller?")
    assert [(message.id, message.run_id, message.text, message.status) for message in turn.messages] == [
        ("m-1", lost.id, "Let me look.", "complete"),
        ("m-3", again.id, "Everest, by 238", "interrupted"),
    ]
    assert {call.id: (call.status, call.effect, call.result) for call in turn.calls} == {
        "c-1": ("completed", "done", "8611 m"),
        "c-2": ("completed", "done", "8849 m"),
        "c-3": ("cancelled", "none", None),
        "c-4": ("failed", "none", None),
    }
    assert turn.messages[0].usage == {"input_tokens": 12, "output_tokens": 7}
    assert turn.status == RunStatus.CANCELLED
    assert [call.status for call in alone.calls][1] == "interrupted", "what was read before is not changed"


@pytest.mark.parametrize("status", ACTIVE)
def test_what_is_not_over_is_streaming_and_running(status):
    turn = log(
        completed("m", "", "c"),
        started("c"),
        ("message.delta", {"message": "n", "text": "one "}),
        status=status,
    )
    assert [message.status for message in turn.messages] == ["complete", "streaming"]
    (call,) = turn.calls
    assert (call.status, call.effect) == (ToolStatus.RUNNING, None)
    assert turn.status is None


@pytest.mark.parametrize("status", TERMINAL)
def test_what_the_end_cut_says_so(status):
    turn = log(
        completed("m", "", "c", "d"),
        started("c"),
        ("message.delta", {"message": "n", "text": "one "}),
        (TERMINAL_EVENT[status], {}),
    )
    ended = ToolStatus.INTERRUPTED if status == RunStatus.INTERRUPTED else ToolStatus.CANCELLED
    assert [(call.status, call.effect) for call in turn.calls] == [
        (ended, Effect.UNKNOWN),
        (ended, Effect.NONE),
    ]
    assert turn.messages[-1].status == "interrupted"
    assert turn.status == status


@pytest.mark.parametrize(("reason", "effect"), [("worker_lost", Effect.UNKNOWN), ("shutdown", Effect.NONE)])
def test_a_lost_run_may_have_begun_what_it_asked_for(reason, effect):
    turn = log(completed("m", "", "c"), ("run.interrupted", {"reason": reason}), status=RunStatus.INTERRUPTED)
    assert [(call.status, call.effect) for call in turn.calls] == [(ToolStatus.INTERRUPTED, effect)]


def test_what_a_lost_run_may_have_begun_its_resumption_may_not_call_undone():
    asked = completed("m", "", "lost", "left")
    end = ("tool.cancelled", {"tool_call": "left", "effect": "none"})
    alone = log(asked, end, ("run.interrupted", {"reason": "worker_lost"}), status=RunStatus.INTERRUPTED)
    entries = [Entry(1, "run.cancelled", {}, AT)]
    turn = transcript.fold(Run("again", RunStatus.CANCELLED, "u", "question", AT), entries, alone)
    assert [(call.id, call.effect) for call in turn.calls] == [
        ("lost", Effect.UNKNOWN),
        ("left", Effect.NONE),
    ]


def test_the_text_of_the_end_counts_and_deltas_behind_it_do_not():
    late = ("message.delta", {"message": "m", "text": "late"})
    turn = log(("message.delta", {"message": "m", "text": "one"}), completed("m", "one two"), late)
    assert turn.messages[0].text == "one two"


def test_compacted_deltas_leave_the_same_words():
    deltas = [("message.delta", {"message": "m", "text": text}) for text in ("one ", "two ", "three")]
    assert (
        log(*deltas, completed("m", "one two three")).messages
        == log(completed("m", "one two three")).messages
    )


def test_a_call_without_a_name_was_never_asked():
    nameless = [{"id": "c", "name": "", "args": {}}, {"id": "", "name": "tool", "args": {}}]
    turn = log(completed("m", "text", tool_calls=nameless))
    assert list(turn.calls) == []


def test_a_message_that_says_nothing_is_left_out():
    assert log(completed("m", " "), status=RunStatus.CANCELLED).messages == []


def test_a_result_that_is_no_text_is_shown_as_json():
    turn = log(
        completed("m", "", "c"), started("c"), ("tool.completed", {"tool_call": "c", "result": {"a": "ä"}})
    )
    assert next(turn.calls).result == '{"a": "ä"}'


# Any turn, cut anywhere


@strategies.composite
def turns(draw: Any) -> tuple[list[tuple[str, dict[str, Any]]], list[BaseMessage]]:
    """The events of a whole turn, and the messages its checkpoint holds in the end."""
    events: list[tuple[str, dict[str, Any]]] = [("run.queued", {"message": "u", "input": "question"})]
    messages: list[BaseMessage] = [HumanMessage("question", id="u")]
    for number in range(draw(strategies.integers(1, 3))):
        message = f"m{number}"
        text = draw(strategies.text(max_size=8))
        calls = [f"{message}c{call}" for call in range(draw(strategies.integers(0, 3)))]
        events.append(("message.started", {"message": message, "role": "assistant", "node": "agent"}))
        events += [("message.delta", {"message": message, "text": character}) for character in text]
        events.append(completed(message, text, *calls))
        asked = [{"name": "tool", "args": {}, "id": call} for call in calls]
        messages.append(AIMessage(text, id=message, tool_calls=asked))
        for call in draw(strategies.permutations(calls)):
            if draw(strategies.booleans()):
                events.append(started(call, message))
        for call in draw(strategies.permutations(calls)):
            kind = draw(strategies.sampled_from(("tool.completed", "tool.failed", "tool.cancelled", "")))
            if kind:
                events.append((kind, {"tool_call": call, "result": "r", "error": "e", "effect": "unknown"}))
            if kind == "tool.completed":
                messages.append(ToolMessage("r", tool_call_id=call, id=f"t{call}"))
    return events, messages


@settings(max_examples=150)
@given(whole=turns(), data=strategies.data())
def test_a_turn_cut_at_any_event_is_sendable_and_repairing_twice_changes_nothing(whole, data):
    events, messages = whole
    cut = data.draw(strategies.integers(0, len(events)), label="events in the log")
    status = data.draw(strategies.sampled_from(TERMINAL[1:]), label="status")
    # The checkpoint may lag behind the log or be ahead of it, and tools may have come in any order.
    held = data.draw(strategies.integers(0, len(messages)), label="messages in the checkpoint")
    shuffled = data.draw(strategies.booleans(), label="results moved to the end")
    stored = messages[:held]
    if shuffled:
        stored = [m for m in stored if m.type != "tool"] + [m for m in stored if m.type == "tool"]
    turn = log(*events[:cut], (TERMINAL_EVENT[status], {}))
    repaired = normalise(stored, [turn])

    assert unsendable([*repaired, HumanMessage("next", id="next")]) is None
    assert repaired[0].id == "u"
    assert isinstance(repaired[-1], AIMessage)
    assert repaired[-1].text.strip()
    again = normalise(repaired, [turn])
    assert len(again) == len(repaired)
    assert all(one is other for one, other in zip(again, repaired, strict=True))
    ids = [message.id for message in repaired]
    assert len(set(ids)) == len(ids)
    # Whatever really arrived is there once, and each word that was shown is what was shown.
    answered = {m.tool_call_id: m for m in repaired if isinstance(m, ToolMessage)}
    for message in stored:
        if isinstance(message, ToolMessage):
            assert answered[message.tool_call_id] is message
    for call in turn.calls:
        if call.status == ToolStatus.COMPLETED and call.id in answered:
            assert answered[call.id].text == "r"
    texts = {message.id: message for message in repaired}
    for said in turn.messages:
        if said.text.strip():
            found = texts[said.id]
            assert found.text == said.text or said.id in {m.id for m in stored}
            if said.status == "interrupted" and said.id not in {m.id for m in stored}:
                assert engine_mark(found) == "interrupted"
