"""What the log of a run owes before its terminal event, when no execution has written it."""

from typing import Any

from runs.log import tool_calls, transcript
from runs.log.events import Entry
from runs.log.transcript import NOTES, note_id
from runs.models import Run, RunEvent
from runs.states import EventType, RunStatus

_CLOSED_BY_A_NOTE = (RunStatus.CANCELLED, RunStatus.FAILED)


def owed(run: Run, *, lost: bool) -> list[Entry]:
    """The ends of calls that are open, and the note of a turn that ended without an answer.

    Nothing of that when the run may be gone on with. An execution that brought the history into order has
    logged it all; of what a ``lost`` one did last the log may say nothing.
    """
    entries = tool_calls.close_open(run, resumable=run.status == RunStatus.INTERRUPTED, lost=lost)
    if run.status in _CLOSED_BY_A_NOTE and not run.repaired:
        said = transcript.fold(run, RunEvent.objects.filter(run=run).order_by("seq"))
        if entries or not said.has_answer:
            entries += _note(run)
    return entries


def messages_in(entries: list[Entry]) -> int:
    """How many messages these add to the turn: the results and the note."""
    return sum(type in (EventType.TOOL_CANCELLED, EventType.MESSAGE_COMPLETED) for type, _ in entries)


def _note(run: Run) -> list[Entry]:
    message = {"message": note_id(run.id), "role": "assistant"}
    whole: dict[str, Any] = {
        "text": NOTES[RunStatus(run.status)],
        "tool_calls": [],
        "usage": None,
        "status": "interrupted",
    }
    return [
        (EventType.MESSAGE_STARTED, {**message, "node": None, "namespace": []}),
        (EventType.MESSAGE_COMPLETED, {**message, **whole}),
    ]
