"""The log of one execution, as tests read it, and what holds for every log."""

import json
import threading
from collections import Counter
from typing import Any

from runs.states import EventType
from runs.translation.translator import LoggedBefore


class Recorder:
    """An emitter that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.kept: dict[str, bytes] = {}  # by call id

    def emit(self, event: EventType, data: dict[str, Any], /) -> None:
        json.dumps(data, allow_nan=False).encode()  # storable: plain JSON that can be encoded
        self.events.append((str(event), data))

    def count(self, **deltas: int) -> None:
        self.threads.add(threading.get_ident())
        self.counts.update(deltas)

    def keep(self, call_id: str, dumped: bytes, /) -> None:
        self.kept[call_id] = dumped

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [data for event, data in self.events if event in types]

    @property
    def types(self) -> list[str]:
        """The event types, the deltas of one message as one."""
        types: list[str] = []
        for event, _ in self.events:
            if event != "message.delta" or types[-1:] != ["message.delta"]:
                types.append(event)
        return types

    @property
    def texts(self) -> list[str]:
        return [data["text"] for data in self.of("message.completed")]


ENDS = ("tool.completed", "tool.failed", "tool.cancelled")


def assert_log_is_sound(recorder: Recorder, known: LoggedBefore | None = None) -> None:
    """What holds for every closed execution, whatever happened in it."""
    known = known or LoggedBefore()
    texts: dict[str, str] = {}
    holders = {call.id: call.message for call in known.calls}
    started = {call.id for call in known.calls if call.started and not call.ended}
    in_doubt = {call.id for call in known.calls if call.may_have_begun}
    owed = {call.id for call in known.calls if not call.ended}
    messages = results = 0
    for event, data in recorder.events:
        if event == "message.started":
            assert data["message"] not in texts
            texts[data["message"]] = ""
        elif event == "message.delta":
            assert data["text"]
            texts[data["message"]] += data["text"]
        elif event == "message.completed":
            messages += 1
            if not data["message"].endswith(":note"):
                assert data["text"] == texts[data["message"]]
            for call in data["tool_calls"]:
                assert call["id"] not in owed
                owed.add(call["id"])
                holders[call["id"]] = data["message"]
        elif event == "tool.started":
            assert data["tool_call"] not in started
            assert data["message"] == holders.get(data["tool_call"])
            started.add(data["tool_call"])
            owed.add(data["tool_call"])
        elif event in ENDS:
            call = data["tool_call"]
            assert call in owed
            owed.discard(call)
            if event == "tool.completed":
                assert call in started
            if event == "tool.cancelled":
                assert data["effect"] == ("unknown" if call in started | in_doubt else "none")
            started.discard(call)
            results += holders.get(call) is not None
    assert not started
    assert not owed
    assert len(recorder.of("message.completed")) == len(texts)
    counts = recorder.counts
    assert counts["message_count"] == messages + results
    assert counts["tool_calls"] == len(recorder.of("tool.started"))
    assert counts["open_input_tokens"] == 0
    assert counts["open_output_tokens"] == 0
