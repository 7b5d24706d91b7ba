"""Fold the log of a turn into what was said in it: the user's message, the answers, their tool calls.

Pure: it reads events and asks nobody. The log is the truth about words; whoever shows a turn that is
active or not yet repaired, and the repair itself, read it here, so that they cannot differ.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from runs.states import (
    ACTIVE,
    TERMINAL,
    TERMINAL_EVENT,
    Effect,
    EventType,
    InterruptReason,
    RunStatus,
    ToolStatus,
)
from runs.wire import contract

MessageStatus = Literal["complete", "interrupted", "streaming"]

# What closes a turn that ended without an answer: some providers refuse a user message right behind a tool's.
NOTES = {
    RunStatus.CANCELLED: "(Stopped before an answer was given.)",
    RunStatus.FAILED: "(The turn failed before an answer was given.)",
    RunStatus.INTERRUPTED: "(The turn was interrupted before an answer was given.)",
}

_ENDS = {event: status for status, event in TERMINAL_EVENT.items()}


class EventLike(Protocol):
    """What is read of an event; ``runs.models.RunEvent`` is one."""

    @property
    def seq(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def at(self) -> datetime: ...


class RunLike(Protocol):
    """What is read of a run; ``runs.models.Run`` is one."""

    @property
    def id(self) -> UUID | str: ...
    @property
    def status(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...


@dataclass(slots=True)
class Call:
    """One tool call: what was asked, and what is known of the outcome."""

    id: str
    name: str
    args: dict[str, Any]
    message: str  # id of the assistant message that asked for it
    status: ToolStatus = ToolStatus.RUNNING
    result: str | None = None
    error: str | None = None
    effect: Effect | None = None  # None while it may still come to something
    duration_ms: int | None = None
    started: bool = False
    may_have_begun: bool = False  # in a run that this one resumes, which does not know what came of it
    broken: bool = False  # its arguments could not be read, so ``args`` is empty

    @property
    def was_answered(self) -> bool:
        """Its result arrived, or an error in its place."""
        return self.status in (ToolStatus.COMPLETED, ToolStatus.FAILED)

    @property
    def is_open(self) -> bool:
        """Neither a result nor an end of it was logged."""
        return self.status == ToolStatus.RUNNING


@dataclass(slots=True)
class Message:
    """One message of the answer, with the calls it asked for in their order."""

    id: str
    run_id: str  # the run that wrote it: of a resumed turn not always the last one
    role: str
    text: str
    status: MessageStatus
    at: datetime  # when it was complete; of one that is not, when it began
    node: str = ""
    namespace: Any = None
    calls: list[Call] = field(default_factory=list)
    usage: contract.Usage | None = None

    @property
    def is_empty(self) -> bool:
        """It says nothing and asks for nothing, so there is nothing to keep or to show."""
        return not self.text.strip() and not self.calls


@dataclass(slots=True)
class UserMessage:
    """What the turn was asked."""

    id: str
    run_id: str
    text: str
    at: datetime


@dataclass(slots=True)
class Transcript:
    """One turn: of one run, or of a run and those it resumes."""

    run_id: str  # the last run of the turn
    user: UserMessage
    messages: list[Message]
    status: RunStatus | None  # how the last run ended; None while it is active

    @property
    def has_answer(self) -> bool:
        """It ends with words of an assistant's."""
        last = self.messages[-1] if self.messages else None
        return last is not None and last.role == "assistant" and not last.calls and bool(last.text.strip())

    @property
    def calls(self) -> Iterator[Call]:
        return (call for message in self.messages for call in message.calls)


def close(said: Transcript, at: datetime) -> None:
    """Put behind a turn that came to no answer the note that a repair will put there."""
    if said.status in NOTES and not said.has_answer:
        text = NOTES[said.status]
        said.messages.append(Message(note_id(said.run_id), said.run_id, "assistant", text, "interrupted", at))


def note_id(run_id: UUID | str) -> str:
    """The id of the message that closes a turn which ended without an answer."""
    return f"{run_id}:note"


def read(run: RunLike, events: Iterable[EventLike], resumed: Transcript | None = None) -> Transcript:
    """What ``run`` said, from its ``events`` in order; as one turn with ``resumed``, the run it goes on from.

    A message that was never completed is streaming while the run is active, and interrupted once it has
    ended. Of the resumed run, what was not complete is left out: the new run says it again. Its open calls
    stay open, since the new run continues them under the same ids.
    """
    reader = _Reader(run, resumed)
    for event in events:
        reader.take(event)
    return reader.transcript()


class _Reader:
    """The state of a fold. What it does not know, an event's type, a message or a call, it passes over."""

    def __init__(self, run: RunLike, resumed: Transcript | None) -> None:
        self.run_id = str(run.id)
        self.status = RunStatus(run.status)
        self.is_lost = False  # the log may lack what its execution did last
        self.user = (
            replace(resumed.user)
            if resumed
            else UserMessage(run.message_id, self.run_id, run.input, run.created_at)
        )
        self.is_resuming = resumed is not None
        self.messages: dict[str, Message] = {}
        self.calls: dict[str, Call] = {}
        self.completed: set[str] = set()  # ids of messages whose end this run has logged
        for message in resumed.messages if resumed else ():
            if message.status == "complete" and message.id != note_id(message.run_id):
                calls = [_reopened(call) for call in message.calls]
                self.messages[message.id] = replace(message, calls=calls)
                self.calls |= {call.id: call for call in calls}

    def take(self, event: EventLike) -> None:
        data = event.data
        match event.type:
            case EventType.RUN_QUEUED:
                if not self.is_resuming:
                    self.user.id = data.get("message") or self.user.id
                    self.user.text = data.get("input", self.user.text)
            case EventType.MESSAGE_STARTED:
                self._message(data, event.at)
            case EventType.MESSAGE_DELTA:
                message = self._message(data, event.at)
                if message.id not in self.completed:
                    message.text += data.get("text") or ""
            case EventType.MESSAGE_COMPLETED:
                self._complete(data, event.at)
            case EventType.TOOL_STARTED:
                self._start(data)
            case EventType.TOOL_COMPLETED | EventType.TOOL_FAILED | EventType.TOOL_CANCELLED:
                if call := self.calls.get(data["tool_call"]):
                    _end(call, event)
            case ended if ended in _ENDS:
                self.status = _ENDS[EventType(ended)]
                self.is_lost = data.get("reason") == InterruptReason.WORKER_LOST

    def transcript(self) -> Transcript:
        is_active = self.status in ACTIVE
        for message in self.messages.values():
            if message.status == "streaming" and not is_active:
                message.status = "interrupted"
        if not is_active:
            for call in self.calls.values():
                if call.is_open:
                    call.effect = Effect.UNKNOWN if self.is_lost else _effect_of_end(call)
                    call.status = (
                        ToolStatus.INTERRUPTED
                        if self.status == RunStatus.INTERRUPTED
                        else ToolStatus.CANCELLED
                    )
        return Transcript(
            run_id=self.run_id,
            user=self.user,
            # One that has just begun is shown, empty as it is: its words are on their way.
            messages=[m for m in self.messages.values() if m.status == "streaming" or not m.is_empty],
            status=self.status if self.status in TERMINAL else None,
        )

    def _message(self, data: Mapping[str, Any], at: datetime) -> Message:
        known = self.messages.get(data["message"])
        if known is None:
            known = self.messages[data["message"]] = Message(
                id=data["message"],
                run_id=self.run_id,
                role=data.get("role") or "assistant",
                text="",
                status="streaming",
                at=at,
                node=data.get("node") or "",
                namespace=data.get("namespace"),
            )
        return known

    def _complete(self, data: Mapping[str, Any], at: datetime) -> None:
        message = self._message(data, at)
        self.completed.add(message.id)
        message.text = data.get("text", message.text)
        message.status = "interrupted" if data.get("status") == "interrupted" else "complete"
        message.usage = data.get("usage")
        message.at = at
        # What an interrupted message was still spelling out was never asked.
        for asked in data.get("tool_calls") or () if message.status == "complete" else ():
            call = self._ask(asked["id"], asked.get("name"), asked.get("args"), message)
            if call is not None:
                call.broken = "error" in asked

    def _start(self, data: Mapping[str, Any]) -> None:
        call = self.calls.get(data["tool_call"])
        if call is None and (message := self.messages.get(data.get("message") or "")):
            # Some models' messages do not list the call in a form the log kept; that it ran is proof enough.
            call = self._ask(data["tool_call"], data.get("name"), data.get("args"), message)
        if call is not None:
            call.started = True
            if not call.is_open and call.effect != Effect.DONE:
                call.status, call.effect = ToolStatus.RUNNING, None

    def _ask(self, call_id: str, name: str | None, args: Any, message: Message) -> Call | None:
        if not call_id or not name or not isinstance(args if args is not None else {}, dict):
            return None
        call = self.calls.get(call_id)
        if call is None or call.message != message.id:
            call = self.calls[call_id] = Call(call_id, name, dict(args or {}), message.id)
            message.calls.append(call)
        return call


def as_text(value: Any) -> str | None:
    """A result or an error as the words it is shown with."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _reopened(call: Call) -> Call:
    """A call of the resumed run as the new run finds it: open again, unless its outcome is known."""
    if call.was_answered:
        return replace(call)
    may_have_begun = call.effect == Effect.UNKNOWN
    return replace(call, status=ToolStatus.RUNNING, effect=None, may_have_begun=may_have_begun)


def _end(call: Call, event: EventLike) -> None:
    data = event.data
    if event.type == EventType.TOOL_COMPLETED:
        call.status, call.effect = ToolStatus.COMPLETED, Effect.DONE
        call.result, call.duration_ms = as_text(data.get("result")), data.get("duration_ms")
    elif event.type == EventType.TOOL_FAILED:
        call.status, call.error = ToolStatus.FAILED, as_text(data.get("error"))
        # An error that arrived is an answer too; of a call that never ran it says just that.
        call.effect = Effect.DONE if call.started else Effect.NONE
        call.duration_ms = data.get("duration_ms")
    else:
        call.status = ToolStatus.CANCELLED
        call.effect = Effect(data["effect"]) if data.get("effect") else _effect_of_end(call)


def _effect_of_end(call: Call) -> Effect:
    """What is known of the effect of a call that ended without an answer."""
    return Effect.UNKNOWN if call.started or call.may_have_begun else Effect.NONE
