"""Ids of our own, where a model's provider gives none, an empty one, or one that is in use.

A graph keeps messages and calls apart by their ids: of two messages with one id it keeps the second, and of
two calls with one id somebody loses a result. So an id that would not be unique is replaced before anybody
sees it: in each piece that is streamed, and in the whole message. The provider's own id stays wherever it is
good, since some providers want it back.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage


@dataclass(slots=True)
class _LLMCall:
    """What one call of a model is given, and has given so far."""

    used: set[str]  # ids in its input
    messages: dict[str, str] = field(default_factory=dict)  # the provider's ids, to those that are used
    calls: dict[Any, tuple[str, str]] = field(default_factory=dict)  # the same for tool calls, by their place


class OwnIds:
    """The ids of one execution. Used in the thread of each model.

    ``is_used`` says of an id whether the conversation has it, in its state or in its log.
    """

    def __init__(self, is_used: Callable[[str], bool]) -> None:
        self._is_used = is_used
        self._given: set[str] = set()  # by the models of this execution
        self._open: dict[UUID, _LLMCall] = {}
        self._lock = threading.Lock()

    def begin(self, run_id: UUID, messages: Iterable[BaseMessage]) -> None:
        """A model is called with these messages."""
        used: set[str] = set()
        for message in messages:
            if message.id:
                used.add(message.id)
            if isinstance(message, AIMessage):
                used.update(call["id"] for call in message.tool_calls if call["id"])
        self._open[run_id] = _LLMCall(used)

    def end(self, run_id: UUID) -> None:
        """The call is over."""
        self._open.pop(run_id, None)

    def in_chunk(self, run_id: UUID, chunk: AIMessageChunk) -> None:
        """Replace what has to be replaced in a piece of a message."""
        if (call := self._open.get(run_id)) is None:
            return
        self._name(call, chunk)
        if not chunk.tool_call_chunks:
            return
        replaced: dict[str, str] = {}
        for number, piece in enumerate(chunk.tool_call_chunks):
            index = piece.get("index")
            place = (number, uuid4()) if index is None else index  # without an index a piece is a whole call
            given = piece.get("id") or ""
            if place not in call.calls and (given or piece.get("name")):
                call.calls[place] = given, self._unique(call, given, "call_")
                piece["id"] = call.calls[place][1]
            elif place in call.calls and given:  # some providers repeat it in each piece
                piece["id"] = call.calls[place][1]
            if given and piece["id"] != given:
                replaced[given] = str(piece["id"])
        whole: Any = chunk
        whole.init_tool_calls()  # makes ``tool_calls`` of the pieces
        _rename_blocks(chunk, replaced)

    def in_whole(self, run_id: UUID, message: AIMessage) -> None:
        """Replace what has to be replaced in a whole message, of which the pieces may have been seen."""
        if (call := self._open.get(run_id)) is None:
            return
        self._name(call, message)
        known = {new for _, new in call.calls.values()}
        replaced: dict[str, str] = {}
        for asked in (*message.tool_calls, *message.invalid_tool_calls):
            given = asked["id"] or ""
            if given in known:
                known.discard(given)  # another call with this id is another one
                continue
            chosen = asked["id"] = self._unique(call, given, "call_")
            if given and chosen != given:
                replaced[given] = chosen
        _rename_blocks(message, replaced)

    def _name(self, call: _LLMCall, message: AIMessage) -> None:
        given = message.id or ""
        if given in call.messages.values():
            return
        if given not in call.messages:
            call.messages[given] = self._unique(call, given, "msg_")
        message.id = call.messages[given]

    def _unique(self, call: _LLMCall, given: str, prefix: str) -> str:
        with self._lock:
            is_good = given and given not in self._given and given not in call.used
            chosen = given if is_good and not self._is_used(given) else f"{prefix}{uuid4().hex}"
            self._given.add(chosen)
            return chosen


def _rename_blocks(message: AIMessage, replaced: dict[str, str]) -> None:
    """Some providers' calls stand among the blocks of the content, too."""
    for block in message.content if replaced and isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("id") in replaced:
            block["id"] = replaced[block["id"]]
