"""Fold the log of a turn into its transcript: the user's message, the answers, their tool calls.

It reads nothing but the events it is given. The history of an active or unrepaired turn is made of its
transcript, and so is the repair of its checkpoint. So the two do not differ.
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
    Audience,
    Effect,
    EventType,
    InterruptReason,
    RunStatus,
    ToolStatus,
)
from runs.wire import contract

MessageStatus = Literal["complete", "interrupted", "streaming"]

# The text that closes a turn without an answer: some providers refuse a user message behind a tool result.
_NOTES: dict[str, str] = {
    RunStatus.CANCELLED: "(Stopped before an answer was given.)",
    RunStatus.FAILED: "(The turn failed before an answer was given.)",
    RunStatus.INTERRUPTED: "(The turn was interrupted before an answer was given.)",
}


def closing_note(status: str | None, *, is_answered: bool) -> str | None:
    """The text that closes a turn whose last run has this status; None if it needs none."""
    return None if is_answered or status is None else _NOTES.get(status)


_ENDS = {event: status for status, event in TERMINAL_EVENT.items()}


class EventLike(Protocol):
    """The fields of an event that are used; ``runs.models.RunEvent`` has them."""

    @property
    def seq(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def at(self) -> datetime: ...


class RunLike(Protocol):
    """The fields of a run that are used; ``runs.models.Run`` has them."""

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
class LoggedCall:
    """One tool call as the log has it: what was asked, and what is known of the outcome."""

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
    may_have_begun: bool = False  # in a run that this one resumes; its outcome is not known
    broken: bool = False  # its arguments could not be parsed, so ``args`` is empty

    @property
    def was_answered(self) -> bool:
        """Whether a result or an error arrived."""
        return self.status in (ToolStatus.COMPLETED, ToolStatus.FAILED)

    @property
    def is_open(self) -> bool:
        """Whether neither a result nor an end was logged."""
        return self.status == ToolStatus.RUNNING


@dataclass(slots=True)
class Message:
    """One message of the answer, with the calls it asked for in their order."""

    id: str
    run_id: str  # the run that wrote it; in a resumed turn not always the last one
    role: str
    text: str
    status: MessageStatus
    at: datetime  # when it was complete; of an incomplete one, when it began
    node: str = ""
    namespace: Any = None
    task: str | None = None  # the root graph's task in which it was made
    audience: Audience = Audience.ANSWER
    calls: list[LoggedCall] = field(default_factory=list)
    usage: contract.Usage | None = None
    is_closed: bool = False  # the log has its end

    @property
    def is_empty(self) -> bool:
        """Whether it has neither text nor calls."""
        return not self.text.strip() and not self.calls


@dataclass(slots=True)
class UserMessage:
    """The message that the turn answers."""

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
    def answers(self) -> list[Message]:
        """What was said to the user."""
        return [message for message in self.messages if message.audience == Audience.ANSWER]

    @property
    def has_answer(self) -> bool:
        """Whether its last answer is an assistant's, with text and without calls."""
        last = self.answers[-1] if self.answers else None
        return last is not None and last.role == "assistant" and not last.calls and bool(last.text.strip())

    @property
    def calls(self) -> Iterator[LoggedCall]:
        return (call for message in self.messages for call in message.calls)


def add_note(turn: Transcript, at: datetime) -> None:
    """Add the closing note to a turn without an answer, as a repair will add it to the checkpoint."""
    if text := closing_note(turn.status, is_answered=turn.has_answer):
        note = Message(note_id(turn.run_id), turn.run_id, "assistant", text, "interrupted", at)
        turn.messages.append(note)


def note_id(run_id: UUID | str) -> str:
    """The id of the closing note of a turn whose last run is this."""
    return f"{run_id}:note"


def run_of_note(message_id: str) -> UUID | None:
    """The run of which this is the id of the closing note; None if it is another message's."""
    run_id, _, rest = message_id.partition(":")
    try:
        return UUID(run_id) if rest == "note" else None
    except ValueError:
        return None


def fold(run: RunLike, events: Iterable[EventLike], resumed: Transcript | None = None) -> Transcript:
    """The transcript of ``run``, from its ``events`` in order. ``resumed`` is that of the run it resumes.

    A message that was not completed is streaming while the run is active, and interrupted after its end.
    Incomplete messages of the resumed run are left out: the new run writes them again. Its open calls stay
    open: the new run continues them under the same ids.
    """
    state = _Fold(run, resumed)
    for event in events:
        state.add(event)
    return state.transcript()


class _Fold:
    """The state of a fold. Unknown types of events, messages and calls are ignored."""

    def __init__(self, run: RunLike, resumed: Transcript | None) -> None:
        self.run_id = str(run.id)
        self.status = RunStatus(run.status)
        self.is_lost = False  # the execution was lost, and may have done more than was logged
        self.effects: Mapping[str, str] = {}  # of the open calls of an interrupted run; not in older logs
        self.user = (
            replace(resumed.user)
            if resumed
            else UserMessage(run.message_id, self.run_id, run.input, run.created_at)
        )
        self.is_resuming = resumed is not None
        self.messages: dict[str, Message] = {}
        self.calls: dict[str, LoggedCall] = {}
        self.completed: set[str] = set()  # ids of messages whose end this run has logged
        for message in resumed.messages if resumed else ():
            if message.status == "complete" and message.id != note_id(message.run_id):
                calls = [_reopened(call) for call in message.calls]
                self.messages[message.id] = replace(message, calls=calls)
                self.calls |= {call.id: call for call in calls}

    def add(self, event: EventLike) -> None:
        data = event.data
        match event.type:
            case EventType.RUN_QUEUED:
                if not self.is_resuming:
                    self.user.id = data.get("message") or self.user.id
                    self.user.text = data.get("input", self.user.text)
            case EventType.MESSAGE_STARTED | EventType.MESSAGE_DELTA:
                message = self._message(data, event.at)
                if message.id not in self.completed:
                    message.text += data.get("text") or ""
            case EventType.MESSAGE_COMPLETED:
                self._complete(data, event.at)
            case EventType.MESSAGE_CHANGED:
                self._change(data)
            case EventType.TOOL_STARTED:
                self._start(data)
            case EventType.TOOL_COMPLETED | EventType.TOOL_FAILED | EventType.TOOL_CANCELLED:
                if call := self.calls.get(data["tool_call"]):
                    _end(call, event)
            case ended if ended in _ENDS:
                self.status = _ENDS[EventType(ended)]
                self.is_lost = data.get("reason") == InterruptReason.WORKER_LOST
                self.effects = data.get("effects") or {}

    def transcript(self) -> Transcript:
        is_active = self.status in ACTIVE
        for message in self.messages.values():
            if message.status == "streaming" and not is_active:
                message.status = "interrupted"
        if not is_active:
            for call in self.calls.values():
                if call.is_open:
                    effect = self.effects.get(call.id)
                    call.effect = Effect(effect) if effect else _effect_at_end(call, self.is_lost)
                    call.status = (
                        ToolStatus.INTERRUPTED
                        if self.status == RunStatus.INTERRUPTED
                        else ToolStatus.CANCELLED
                    )
        return Transcript(
            run_id=self.run_id,
            user=self.user,
            # A streaming message is shown although it may be empty: its text is to come.
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
                task=data.get("task"),
                audience=Audience(data.get("audience", Audience.ANSWER)),
            )
        return known

    def _complete(self, data: Mapping[str, Any], at: datetime) -> None:
        message = self._message(data, at)
        self.completed.add(message.id)
        message.is_closed = True
        message.text = data.get("text", message.text)
        message.status = "interrupted" if data.get("status") == "interrupted" else "complete"
        message.usage = data.get("usage")
        message.at = at
        # The calls of an interrupted message were not complete, so they were never made.
        for asked in data.get("tool_calls") or () if message.status == "complete" else ():
            call = self._ask(asked["id"], asked.get("name"), asked.get("args"), message)
            if call is not None:
                call.broken = "error" in asked

    def _change(self, data: Mapping[str, Any]) -> None:
        if (message := self.messages.get(data["message"])) is not None:
            message.text = data.get("text", message.text)
            message.audience = Audience(data.get("audience", message.audience))

    def _start(self, data: Mapping[str, Any]) -> None:
        call = self.calls.get(data["tool_call"])
        if call is None and (message := self.messages.get(data.get("message") or "")):
            # Some models' messages list the call in a form that was not logged. It started, so it was asked.
            call = self._ask(data["tool_call"], data.get("name"), data.get("args"), message)
        if call is not None:
            call.started = True
            if not call.is_open and call.effect != Effect.DONE:
                call.status, call.effect = ToolStatus.RUNNING, None

    def _ask(self, call_id: str, name: str | None, args: Any, message: Message) -> LoggedCall | None:
        if not call_id or not name or not isinstance(args if args is not None else {}, dict):
            return None
        call = self.calls.get(call_id)
        if call is None or call.message != message.id:
            call = self.calls[call_id] = LoggedCall(call_id, name, dict(args or {}), message.id)
            message.calls.append(call)
        return call


def as_text(value: Any) -> str | None:
    """A result or an error as text: strings as they are, all else as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _reopened(call: LoggedCall) -> LoggedCall:
    """A call of the resumed run as the new run has it: open again, unless it was answered."""
    if call.was_answered:
        return replace(call)
    may_have_begun = call.effect == Effect.UNKNOWN
    return replace(call, status=ToolStatus.RUNNING, effect=None, may_have_begun=may_have_begun)


def _end(call: LoggedCall, event: EventLike) -> None:
    data = event.data
    if event.type == EventType.TOOL_COMPLETED:
        call.status, call.effect = ToolStatus.COMPLETED, Effect.DONE
        call.result, call.duration_ms = as_text(data.get("result")), data.get("duration_ms")
    elif event.type == EventType.TOOL_FAILED:
        call.status, call.error = ToolStatus.FAILED, as_text(data.get("error"))
        # An error of a call that started is an answer. A call that did not start has had no effect.
        call.effect = Effect.DONE if call.started else Effect.NONE
        call.duration_ms = data.get("duration_ms")
    else:
        call.status = ToolStatus.CANCELLED
        call.effect = Effect(data["effect"]) if data.get("effect") else _effect_at_end(call)


def _effect_at_end(call: LoggedCall, is_lost: bool = False) -> Effect:
    return Effect.without_result(may_have_begun=is_lost or call.started or call.may_have_begun)
