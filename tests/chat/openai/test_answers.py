"""What of a run's events is the answer that a client of OpenAI's protocol gets."""

import json
from typing import Any, cast

from chat.access.run_connections import RunConnection
from chat.openai.completions import Completion
from runs.live.follow import Event

RUN: Any = {"id": "r", "created_at": "2026-01-01T00:00:00Z"}


def taken(*events: tuple[str, dict[str, Any]]) -> tuple[str, str]:
    """(what is streamed, the whole answer) of these events."""
    completion = Completion(cast(RunConnection, None), RUN, "assistant")
    streamed = "".join(
        completion._take(Event("r", seq, type, json.dumps({"data": data}), False))
        for seq, (type, data) in enumerate(events, start=1)
    )
    return streamed, completion.content


def started(message: str, audience: str = "answer") -> tuple[str, dict[str, Any]]:
    return "message.started", {"message": message, "role": "assistant", "audience": audience}


def delta(message: str, text: str) -> tuple[str, dict[str, Any]]:
    return "message.delta", {"message": message, "text": text}


def completed(message: str, text: str) -> tuple[str, dict[str, Any]]:
    return "message.completed", {"message": message, "role": "assistant", "text": text}


def changed(message: str, **what: str) -> tuple[str, dict[str, Any]]:
    return "message.changed", {"message": message, **what}


def test_models_that_speak_at_once_are_heard_one_after_the_other():
    streamed, whole = taken(
        *(started("a"), delta("a", "one "), started("b"), delta("b", "uno "), delta("a", "two")),
        *(delta("b", "dos"), completed("b", "uno dos"), completed("a", "one two")),
    )
    assert streamed == whole == "one two\n\nuno dos"


def test_work_is_no_part_of_an_answer():
    streamed, whole = taken(
        *(started("w", "work"), delta("w", "hm"), completed("w", "hm")),
        *(started("a"), delta("a", "Yes."), completed("a", "Yes.")),
    )
    assert streamed == whole == "Yes."


def test_what_turns_out_to_be_work_is_no_part_of_the_whole_answer():
    streamed, whole = taken(
        *(started("r"), delta("r", "left"), completed("r", "left"), changed("r", audience="work")),
        *(started("a"), delta("a", "Yes."), completed("a", "Yes.")),
    )
    assert streamed == "left\n\nYes."
    assert whole == "Yes."


def test_what_waits_and_turns_out_to_be_work_is_not_streamed():
    streamed, _ = taken(
        *(started("a"), delta("a", "Y"), started("r"), completed("r", "left"), changed("r", audience="work")),
        completed("a", "Yes."),
    )
    assert streamed == "Yes."


def test_a_rewritten_text_is_that_of_the_whole_answer_and_is_not_streamed_twice():
    streamed, whole = taken(
        *(started("a"), delta("a", "The key is 1234."), completed("a", "The key is 1234.")),
        changed("a", text="The key is ****, as you know."),
    )
    assert streamed == "The key is 1234."
    assert whole == "The key is ****, as you know."
