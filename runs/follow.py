"""Follow a session: subscribe, backfill from the log, live, repair gaps from the log.

The channel layer is a hint, the log is the truth.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the log."""

    run: str  # id of the run
    seq: int  # its number in the run, from 1, without holes
    type: str  # one of runs.states.EventType
    json: str  # the whole Event of the wire contract, serialised on one line
    terminal: bool  # the run's last event


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session's representation changed; a client takes it if its cancellation_revision is not lower."""

    session: dict[str, Any]  # Session


@dataclass(frozen=True, slots=True)
class CancellationChanged:
    """A cancel became pending or settled."""

    session: str
    pending: bool
    revision: int


@dataclass(frozen=True, slots=True)
class EffectChanged:
    """A straggler ended: what is known of a tool call's effect changed after the run's end. No log event."""

    run: str
    tool_call: str
    effect: str


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """The session is gone."""

    session: str


@dataclass(frozen=True, slots=True)
class SummaryChanged:
    """A line of the user's list changed."""

    summary: dict[str, Any]  # {id, title, status, updated_at}


Item: TypeAlias = Event | SessionChanged | CancellationChanged | EffectChanged | SessionDeleted | SummaryChanged
