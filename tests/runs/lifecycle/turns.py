"""Turns to admit, and what the log says of their runs."""

from typing import Any

from runs.lifecycle import admission
from runs.models import Run, RunEvent

# What closes a turn that ended without an answer and without its execution.
NOTE = ("message.started", "message.completed")


def turn(text: str = "hello", **options: Any) -> admission.Turn:
    defaults = {"multitask": "reject", "on_disconnect": "continue", "stream_modes": (), "key": None}
    return admission.Turn.checked(text, **defaults | options)


def types(run: Run) -> list[str]:
    """The types of a run's events, in their order."""
    return list(RunEvent.objects.filter(run=run).order_by("seq").values_list("type", flat=True))
