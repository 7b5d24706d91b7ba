"""Why a waiting run asks again, and what it was answered."""

from dataclasses import dataclass
from typing import Any

from runs.models import Run, RunEvent
from runs.states import EventType


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the graph of a waiting run refused."""

    reason: str
    answers: dict[str, Any]  # by the question's id


def of_run(run: Run) -> Refusal | None:
    """The refusal for which the run waits again, or None if it asks for the first time."""
    events = RunEvent.objects.filter(run=run).order_by("-seq")
    asked = events.filter(type=EventType.RUN_WAITING).first()
    if asked is None or "reason" not in asked.data:
        return None
    given = events.filter(type=EventType.RUN_ANSWERED).first()
    return Refusal(asked.data["reason"], given.data["answers"] if given is not None else {})
