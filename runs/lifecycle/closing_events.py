"""The events that a log still needs before its terminal event, if no execution has written them.

So no log of an ended run needs the pieces of its messages.
"""

from typing import Any

from runs.log import tool_calls, transcript
from runs.log.events import Entry
from runs.log.transcript import note_id
from runs.models import Run, RunEvent
from runs.states import TERMINAL_EVENT, Audience, EventType, RunStatus


def of(run: Run, to: RunStatus) -> list[Entry]:
    """The ends of open messages and tool calls, and the note of a turn without an answer.

    The run gets the status ``to``. An interrupted one may be resumed, so its calls stay open and it gets no
    note. An execution that has repaired the history has logged all of it.
    """
    if to == RunStatus.COMPLETED or run.repaired:
        return tool_calls.ends_of_open(run)
    end = RunEvent(run=run, type=TERMINAL_EVENT[to], data={})  # the log is folded as of then
    said = transcript.fold(run, [*RunEvent.objects.filter(run=run).order_by("seq"), end])
    entries = [_end(message) for message in said.messages if not message.is_closed]
    if to == RunStatus.INTERRUPTED:
        return entries
    calls = tool_calls.ends_of_open(run)
    if text := transcript.closing_note(to, is_answered=said.has_answer and not calls):
        return [*entries, *calls, *_note(run, text)]
    return [*entries, *calls]


def messages_in(entries: list[Entry]) -> int:
    """How many messages these add to the turn: the results and the note."""
    return sum(type in (EventType.TOOL_CANCELLED, EventType.MESSAGE_COMPLETED) for type, _ in entries)


def _end(message: transcript.Message) -> Entry:
    return EventType.MESSAGE_COMPLETED, _whole(message.id, message.text)


def _note(run: Run, text: str) -> list[Entry]:
    message: dict[str, Any] = {"message": note_id(run.id), "role": "assistant"}
    return [
        (EventType.MESSAGE_STARTED, {**message, "node": None, "namespace": [], "audience": Audience.ANSWER}),
        (EventType.MESSAGE_COMPLETED, _whole(note_id(run.id), text)),
    ]


def _whole(message_id: str, text: str) -> dict[str, Any]:
    whole: dict[str, Any] = {"text": text, "tool_calls": [], "usage": None, "status": "interrupted"}
    return {"message": message_id, "role": "assistant", **whole}
