"""The events that a log still needs before its terminal event, if no execution has written them."""

from typing import Any

from runs.log import tool_calls, transcript
from runs.log.events import Entry
from runs.log.transcript import note_id
from runs.models import Run, RunEvent
from runs.states import EventType, RunStatus


def of(run: Run) -> list[Entry]:
    """The ends of open tool calls, and the note of a turn that ended without an answer.

    An interrupted run gets none, since it may be resumed. An execution that has repaired the history has
    logged them itself.
    """
    if run.status == RunStatus.INTERRUPTED:
        return []
    entries = tool_calls.ends_of_open(run)
    if run.status != RunStatus.COMPLETED and not run.repaired:
        said = transcript.fold(run, RunEvent.objects.filter(run=run).order_by("seq"))
        if text := transcript.closing_note(run.status, is_answered=said.has_answer and not entries):
            entries += _note(run, text)
    return entries


def messages_in(entries: list[Entry]) -> int:
    """How many messages these add to the turn: the results and the note."""
    return sum(type in (EventType.TOOL_CANCELLED, EventType.MESSAGE_COMPLETED) for type, _ in entries)


def _note(run: Run, text: str) -> list[Entry]:
    message = {"message": note_id(run.id), "role": "assistant"}
    whole: dict[str, Any] = {"text": text, "tool_calls": [], "usage": None, "status": "interrupted"}
    return [
        (EventType.MESSAGE_STARTED, {**message, "node": None, "namespace": []}),
        (EventType.MESSAGE_COMPLETED, {**message, **whole}),
    ]
