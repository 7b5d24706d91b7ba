"""Bring a list of messages into the normal form that every provider accepts.

The normal form:

- Each tool call of a message has exactly one result. The results stand directly behind the message, in the
  order of the calls, and nowhere else.
- Each call has an id, a name and an object of arguments. Incomplete calls are removed, also from where the
  clients of providers keep calls in their own formats.
- No assistant message is empty.
- No user message stands directly behind a tool result, which some providers refuse. A turn without an answer
  ends with a short note.

Messages that are in normal form are returned as the same objects, so a second time changes nothing.
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
from runs.log.transcript import LoggedCall, Transcript, closing_note, note_id
from runs.memory.incomplete_calls import drop_incomplete_calls
from runs.states import Audience, Effect, RunStatus, ToolStatus

MARK = "turnkeeper"  # a key of additional_kwargs; the clients of providers do not send it

_NOTE = "This turn ended without an answer."


@dataclass(slots=True)
class HistoryChanges:
    """What was changed in a history; lists of ids of messages or calls."""

    users: list[str] = field(default_factory=list)  # user messages that were added
    answers: list[str] = field(default_factory=list)  # answers taken from the log, partial ones included
    notes: list[str] = field(default_factory=list)  # closing notes that were added
    results: list[str] = field(default_factory=list)  # calls whose result was taken from the log
    made_up: list[str] = field(default_factory=list)  # calls that got a result which says that there is none
    dropped_calls: int = 0  # invalid or incomplete calls
    dropped_messages: int = 0  # messages of retried turns, results of no call, empty answers


def marked_as(status: str) -> dict[str, Any]:
    """``additional_kwargs`` of a message that the engine made or cut."""
    return {MARK: {"status": status}}


def engine_mark(message: BaseMessage) -> str | None:
    """The status in the engine's mark of a message; None if it has no mark."""
    found = message.additional_kwargs.get(MARK)
    return found.get("status") if isinstance(found, Mapping) else None


def normalise(
    messages: Sequence[BaseMessage],
    turns: Sequence[Transcript],
    *,
    order: Sequence[str] = (),
    drop: Collection[str] = (),
    begun: str | None = None,
    is_step_open: Callable[[transcript.Message], bool] = lambda message: True,
    is_of_conversation: Callable[[transcript.Message], bool] = lambda message: True,
    from_subgraphs: Sequence[BaseMessage] = (),
    changes: HistoryChanges | None = None,
) -> list[BaseMessage]:
    """``messages`` in normal form, with all of these ``turns`` in them, in this order.

    ``order``: the user message ids of all turns, by position; by default those of ``turns``.
    ``drop``: the user message ids of turns to remove.
    ``begun``: the user message id of the turn that the graph has begun. If its user message is not in
    ``messages``, the graph has removed it on purpose.
    ``is_step_open``: whether the step that gave this message is unfinished. The log may have a message that
    ``messages`` lacks. If its step was finished without it (the text of a router, say), it was left out on
    purpose and is not added.
    ``is_of_conversation``: whether the graph itself said it, or a subgraph that is one of its nodes. What an
    agent says that a tool or a node calls is not added.
    ``from_subgraphs``: messages that subgraphs had not handed over yet. Answers and results are taken from
    them before they are made from the log.
    """
    changes = changes or HistoryChanges()
    order = order or [turn.user.id for turn in turns]
    kept = drop_turns(messages, drop, order, changes)
    for turn in turns:
        later = set(order[order.index(turn.user.id) + 1 :])
        is_begun = turn.user.id == begun
        kept = _complete_turn(
            kept, turn, later, is_begun, is_step_open, is_of_conversation, from_subgraphs, changes
        )
    return pair_calls_with_results(kept, turns, changes, from_subgraphs)


# Turns


def drop_turns(
    messages: Sequence[BaseMessage], drop: Collection[str], order: Collection[str], changes: HistoryChanges
) -> list[BaseMessage]:
    """The messages without the turns in ``drop``; each ends at a user message of ``drop`` or ``order``."""
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


def _complete_turn(
    messages: list[BaseMessage],
    turn: Transcript,
    later: Collection[str],
    is_begun: bool,
    is_step_open: Callable[[transcript.Message], bool],
    is_of_conversation: Callable[[transcript.Message], bool],
    from_subgraphs: Sequence[BaseMessage],
    changes: HistoryChanges,
) -> list[BaseMessage]:
    """Add what the log has of this turn and ``messages`` lacks, and the closing note if it has no answer."""
    end = next((i for i, message in enumerate(messages) if message.id in later), len(messages))
    start = next((i for i, message in enumerate(messages[:end]) if message.id == turn.user.id), None)
    is_new = start is None and not is_begun
    if start is None:
        start = end if is_new else 0
    part: list[BaseMessage] = messages[start:end]
    if is_new:  # it ended before its first checkpoint, or in the queue
        part = [HumanMessage(turn.user.text, id=turn.user.id)]
        changes.users.append(turn.user.id)
    stored = {message.id for message in part}
    in_subgraphs = {message.id: message for message in from_subgraphs if not isinstance(message, ToolMessage)}
    for logged in turn.messages:
        if logged.id in stored or logged.audience == Audience.WORK or not is_of_conversation(logged):
            continue
        if logged.id != note_id(turn.run_id):
            if logged.status == "complete" and not is_new and not is_step_open(logged):
                continue
            if logged.status != "complete" and _was_superseded(logged, turn, stored):
                continue
        if (answer := in_subgraphs.get(logged.id) or _answer(logged)) is not None:
            part.append(answer)
            changes.answers.append(logged.id)
    note = note_id(turn.run_id)
    if turn.status != RunStatus.COMPLETED and not _is_answer(part[-1]) and all(m.id != note for m in part):
        part.append(_note(note, closing_note(turn.status, is_answered=False) or _NOTE))
        changes.notes.append(note)
    return messages[:start] + part + messages[end:]


def _was_superseded(partial: transcript.Message, turn: Transcript, stored: Collection[str | None]) -> bool:
    """Whether the graph made this answer again, or went on without it."""
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


def _answer(logged: transcript.Message) -> BaseMessage | None:
    """A message of the log as a message of the history; None if it is empty."""
    if logged.is_empty:
        return None
    if logged.role == "system":
        return SystemMessage(logged.text, id=logged.id)
    if logged.role == "user":
        return HumanMessage(logged.text, id=logged.id)
    if logged.status != "complete":
        # Its calls were not complete.
        return (
            AIMessage(logged.text, id=logged.id, additional_kwargs=marked_as("interrupted"))
            if logged.text.strip()
            else None
        )
    calls = [
        {"type": "tool_call", "id": call.id, "name": call.name, "args": call.args}
        for call in logged.calls
        if call.was_answered or not call.broken
    ]
    return AIMessage(logged.text, id=logged.id, tool_calls=calls)


def _note(message_id: str, text: str) -> AIMessage:
    return AIMessage(text, id=message_id, additional_kwargs=marked_as("interrupted"))


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls and bool(message.text.strip())


# Calls and results


def pair_calls_with_results(
    messages: Sequence[BaseMessage],
    turns: Sequence[Transcript],
    changes: HistoryChanges,
    from_subgraphs: Sequence[BaseMessage] = (),
) -> list[BaseMessage]:
    """Put each result behind its call, make the missing ones, and drop those without a call.

    Of ``turns`` only the calls are used.
    """
    calls = {(call.message, call.id): call for turn in turns for call in turn.calls}
    results = _results(messages)
    in_subgraphs = {from_subgraphs[index].id: own for index, own in _results(from_subgraphs).items()}
    kept: list[BaseMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            continue
        if isinstance(message, HumanMessage):
            _add_note_behind_result(kept, changes)
        if not isinstance(message, AIMessage):
            kept.append(message)
            continue
        follower = messages[index + 1] if index + 1 < len(messages) else None
        own = (in_subgraphs.get(message.id, {}) if message.id else {}) | results.get(index, {})
        for broken in message.invalid_tool_calls:
            call = calls.get((message.id or "", broken["id"] or ""))
            if call and call.was_answered and call.id not in own:
                own[call.id] = _result(message, {"id": call.id, "name": call.name}, calls, changes)
        complete, dropped = drop_incomplete_calls(
            message, own, is_legacy_call=isinstance(follower, FunctionMessage)
        )
        changes.dropped_calls += dropped
        if complete is None:
            changes.dropped_messages += 1
            continue
        kept.append(complete)
        for asked in complete.tool_calls:
            call_id = str(asked["id"])
            if call_id not in own:
                own[call_id] = _result(complete, asked, calls, changes)
            kept.append(own[call_id])
    _add_note_behind_result(kept, changes)
    placed = {id(message) for message in kept}
    changes.dropped_messages += sum(
        isinstance(message, ToolMessage) and id(message) not in placed for message in messages
    )
    return kept


def _results(messages: Sequence[BaseMessage]) -> dict[int, dict[str, ToolMessage]]:
    """``{index of the calling message: {call id: result}}``; of several results the first one counts.

    A result belongs to the nearest message before it that has a call of its id: some models number the calls
    of each message from the start.
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
    message: AIMessage,
    asked: Mapping[str, Any],
    calls: Mapping[tuple[str, str], LoggedCall],
    changes: HistoryChanges,
) -> ToolMessage:
    """A result for a call that has none in the history: from the log, or one that says why there is none."""
    call_id, name = asked["id"], asked["name"]
    # Made of the ids of message and call, so that a second repair makes the same message.
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
    kwargs = marked_as(ToolStatus.CANCELLED if call is None or call.is_open else call.status)
    return ToolMessage(
        text, tool_call_id=call_id, name=name, id=result_id, status="error", additional_kwargs=kwargs
    )


def _add_note_behind_result(messages: list[BaseMessage], changes: HistoryChanges) -> None:
    """If the last message is a tool result, put a note behind it."""
    if messages and isinstance(messages[-1], ToolMessage):
        note = f"{messages[-1].id or messages[-1].tool_call_id}:note"
        messages.append(_note(note, _NOTE))
        changes.notes.append(note)
