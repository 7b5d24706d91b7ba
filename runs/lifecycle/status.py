"""The status of a run."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a change that an execution asked for."""

    DONE = "done"
    CANCEL_FIRST = "cancel_first"  # a cancel was accepted before; nothing changed, end the run cancelled
    FENCED = "fenced"  # the run is not the execution's any more; nothing changed
