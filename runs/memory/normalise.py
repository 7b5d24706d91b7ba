"""What a history must look like so that any provider takes it, and how to bring one into that form.

Pure: a list of messages in, a list of messages out. The form:

- each tool call of a message has exactly one result, directly behind the message, in the order of the
  calls, and no result stands anywhere else;
- each call has an id, a name and an object of arguments; what was never spelled out is gone, also from
  the places where providers' clients keep calls in their own format;
- no assistant message is empty;
- no user message stands right behind a tool result, which some providers refuse: a turn that came to no
  answer ends with a short note.

What is in that form already comes out as the very same objects, so doing it twice changes nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from runs.log import transcript
from runs.log.transcript import NOTES, Call, Transcript, note_id
from runs.memory.whole_calls import whole_message
from runs.states import Effect, RunStatus, ToolStatus

MARK = "turnkeeper"  # key in additional_kwargs, which the clients of providers do not send on

_NOTE = "This turn ended without an answer."


@dataclass(slots=True)
class Changes:
    """What was done to bring a history into form; ids of messages and calls."""

    users: list[str] = field(default_factory=list)  # user messages put in
    answers: list[str] = field(default_factory=list)  # answers taken from the log, partial ones included
    notes: list[str] = field(default_factory=list)  # closing notes put in
    results: list[str] = field(default_factory=list)  # calls whose result was found in the log
    made_up: list[str] = field(default_factory=list)  # calls that got a result saying that there is none
    dropped_calls: int = 0  # calls that were invalid or never spelled out
    dropped_messages: int = 0  # messages of retried turns, results of no call, empty answers


def mark(status: str) -> dict[str, Any]:
    """``additional_kwargs`` of a message that is not what the model or the tool would have made of it."""
    return {MARK: {"status": status}}


def marked(message: BaseMessage) -> str | None:
    """The status that a message was marked with, None when it was not."""
    found = message.additional_kwargs.get(MARK)
    return found.get("status") if isinstance(found, Mapping) else None


def sendable(
    messages: Sequence[BaseMessage],
    turns: Sequence[Transcript],
    *,
    order: Sequence[str] = (),
    drop: Collection[str] = (),
    was_under_way: Callable[[transcript.Message], bool] = lambda message: True,
    elsewhere: Sequence[BaseMessage] = (),
    changes: Changes | None = None,
) -> list[BaseMessage]:
    """``messages`` in the form above, with these ``turns``, in their order, wholly in it.

    ``order`` are the ids of the user messages of all turns, by position; without it, of ``turns``. ``drop``
    are ids of user messages whose turn leaves the history. ``was_under_way`` says of an answer that
    the log has and ``messages`` has not whether the step that gave it was still open; a step that was
    committed without it (a router's words, say) left it out on purpose. ``elsewhere`` are messages that
    graphs inside the graph had not handed over yet: answers and results are taken from there in their
    original form before they are made from the log.
    """
    changes = changes or Changes()
    order = order or [turn.user.id for turn in turns]
    kept = without(messages, drop, order, changes)
    for turn in turns:
        later = set(order[order.index(turn.user.id) + 1 :])
        kept = _with_turn(kept, turn, later, was_under_way, elsewhere, changes)
    return answered(kept, turns, changes, elsewhere)


# Turns


def without(
    messages: Sequence[BaseMessage], drop: Collection[str], order: Collection[str], changes: Changes
) -> list[BaseMessage]:
    """Leave out the turns in ``drop``, each up to the next user message of ``drop`` or ``order``."""
    known = {*order, *drop}
    kept: list[BaseMessage] = []
    dropping = False
    for message in messages:
        if isinstance(message, HumanMessage) and message.id in known:
            dropping = message.id in drop
        if not dropping:
            kept.append(message)
    changes.dropped_messages += len(messages) - len(kept)
    return kept


def _with_turn(
    messages: list[BaseMessage],
    turn: Transcript,
    later: Collection[str],
    was_under_way: Callable[[transcript.Message], bool],
    elsewhere: Sequence[BaseMessage],
    changes: Changes,
) -> list[BaseMessage]:
    """Put in what the log has of this turn and ``messages`` has not, and close it."""
    end = next((i for i, message in enumerate(messages) if message.id in later), len(messages))
    start = next((i for i, message in enumerate(messages[:end]) if message.id == turn.user.id), None)
    if start is None:
        # It ended before its first checkpoint, or in the queue.
        start = end
        part: list[BaseMessage] = [HumanMessage(turn.user.text, id=turn.user.id)]
        changes.users.append(turn.user.id)
        is_new = True
    else:
        part = messages[start:end]
        is_new = False
    stored = {message.id for message in part}
    originals = {message.id: message for message in elsewhere if not isinstance(message, ToolMessage)}
    for said in turn.messages:
        if said.id in stored:
            continue
        if said.id != note_id(turn.run_id):
            if said.status == "complete" and not is_new and not was_under_way(said):
                continue
            if said.status != "complete" and _was_said_again(said, turn, stored):
                continue
        if (answer := originals.get(said.id) or _answer(said)) is not None:
            part.append(answer)
            changes.answers.append(said.id)
    note = note_id(turn.run_id)
    if turn.status != RunStatus.COMPLETED and not _is_answer(part[-1]) and all(m.id != note for m in part):
        part.append(_note(note, NOTES.get(turn.status, _NOTE) if turn.status else _NOTE))
        changes.notes.append(note)
    return messages[:start] + part + messages[end:]


def _was_said_again(partial: transcript.Message, turn: Transcript, stored: Collection[str | None]) -> bool:
    """The graph tried this answer anew, or went on without it."""
    behind = turn.messages[turn.messages.index(partial) + 1 :]
    return any(
        later.id in stored
        or (
            later.status == "complete"
            and later.node
            and (later.node, later.namespace) == (partial.node, partial.namespace)
        )
        for later in behind
    )


def _answer(said: transcript.Message) -> BaseMessage | None:
    """A message of the log as one of the history, in the log's very words."""
    if said.is_empty:
        return None
    if said.role == "system":
        return SystemMessage(said.text, id=said.id)
    if said.role == "user":
        return HumanMessage(said.text, id=said.id)
    if said.status != "complete":
        # What it asked for, it had not asked wholly.
        return (
            AIMessage(said.text, id=said.id, additional_kwargs=mark("interrupted"))
            if said.text.strip()
            else None
        )
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "args": call.args}
        for call in said.calls
        if call.was_answered or not call.broken
    ]
    return AIMessage(said.text, id=said.id, tool_calls=calls)


def _note(message_id: str, text: str) -> AIMessage:
    return AIMessage(text, id=message_id, additional_kwargs=mark("interrupted"))


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls and bool(message.text.strip())


# Calls and results


def answered(
    messages: Sequence[BaseMessage],
    turns: Sequence[Transcript],
    changes: Changes,
    elsewhere: Sequence[BaseMessage] = (),
) -> list[BaseMessage]:
    """Put each result behind its call, make up those that are missing, drop what nobody asked for.

    Of the ``turns`` only what they know of the calls is used.
    """
    calls = {(call.message, call.id): call for turn in turns for call in turn.calls}
    results = _results(messages)
    originals = {elsewhere[index].id: own for index, own in _results(elsewhere).items()}
    kept: list[BaseMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            continue
        if isinstance(message, HumanMessage):
            _close(kept, changes)
        if not isinstance(message, AIMessage):
            kept.append(message)
            continue
        follower = messages[index + 1] if index + 1 < len(messages) else None
        own = (originals.get(message.id, {}) if message.id else {}) | results.get(index, {})
        for broken in message.invalid_tool_calls:
            logged = calls.get((message.id or "", broken["id"] or ""))
            if logged and logged.was_answered and logged.id not in own:
                own[logged.id] = _result(message, {"id": logged.id, "name": logged.name}, calls, changes)
        whole, dropped = whole_message(message, own, is_legacy_call=isinstance(follower, FunctionMessage))
        changes.dropped_calls += dropped
        if whole is None:
            changes.dropped_messages += 1
            continue
        kept.append(whole)
        for asked in whole.tool_calls:
            call_id = str(asked["id"])
            if call_id not in own:
                own[call_id] = _result(whole, asked, calls, changes)
            kept.append(own[call_id])
    _close(kept, changes)
    placed = {id(message) for message in kept}
    changes.dropped_messages += sum(
        isinstance(message, ToolMessage) and id(message) not in placed for message in messages
    )
    return kept


def _results(messages: Sequence[BaseMessage]) -> dict[int, dict[str, ToolMessage]]:
    """The result of each call: ``{index of the asking message: {call id: result}}``; the first one counts.

    A result belongs to the nearest message before it that asked under its id, since some models number
    the calls of each message from the start.
    """
    asked_by: dict[str, int] = {}
    results: dict[int, dict[str, ToolMessage]] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            for asked in (*message.tool_calls, *message.invalid_tool_calls):
                if asked["id"]:
                    asked_by[asked["id"]] = index
        elif isinstance(message, ToolMessage) and message.tool_call_id in asked_by:
            of_message = results.setdefault(asked_by[message.tool_call_id], {})
            of_message.setdefault(message.tool_call_id, message)
    return results


def _result(
    message: AIMessage, asked: Mapping[str, Any], calls: Mapping[tuple[str, str], Call], changes: Changes
) -> ToolMessage:
    """The result of a call that has none in the history: from the log, or one that says why there is none."""
    call_id, name = asked["id"], asked["name"]
    # Its own id is made from those of message and call, so that the same repair gives the same message.
    result_id = f"{message.id}:{call_id}" if message.id else None
    call = calls.get((message.id or "", call_id))
    if call and call.status == ToolStatus.COMPLETED:
        changes.results.append(call_id)
        return ToolMessage(call.result or "", tool_call_id=call_id, name=name, id=result_id)
    if call and call.status == ToolStatus.FAILED:
        changes.results.append(call_id)
        return ToolMessage(call.error or "", tool_call_id=call_id, name=name, id=result_id, status="error")
    changes.made_up.append(call_id)
    how = "was interrupted" if call and call.status == ToolStatus.INTERRUPTED else "was cancelled"
    if call is None:
        text = "No result of this call was recorded. It may or may not have taken effect."
    elif call.effect == Effect.NONE:
        text = f"This call {how} before it ran. It had no effect."
    elif call.started:
        text = f"This call {how} while it ran. It may have taken effect; its result is not known."
    else:
        text = f"This call {how}. It may have begun and taken effect; its result is not known."
    kwargs = mark(ToolStatus.CANCELLED if call is None or call.is_open else call.status)
    return ToolMessage(
        text, tool_call_id=call_id, name=name, id=result_id, status="error", additional_kwargs=kwargs
    )


def _close(messages: list[BaseMessage], changes: Changes) -> None:
    """If the last message is a tool result, put a note behind it."""
    if messages and isinstance(messages[-1], ToolMessage):
        note = f"{messages[-1].id or messages[-1].tool_call_id}:note"
        messages.append(_note(note, _NOTE))
        changes.notes.append(note)
