"""What others may call. Every edge (page, socket, REST, SSE, OpenAI, admin, commands) uses these and
nothing else of the engine; edges differ only in encoding.

The plain functions run one short transaction each and may be called from any thread that may use the
ORM; from async code call them through ``await runs.database.in_thread(function, ...)``. The ``async``
ones wait or touch the checkpoints and belong on the server's event loop.

Every operation limits itself to what ``actor`` (a user) may see: a foreign id and an unknown id raise
the same ``NotFound``. Only ``runs.errors.EngineError`` subclasses are raised on purpose. Dictionaries
are the shapes of the wire contract (Session, Run, Cancellation, Message, Event), JSON-ready: ids and
times are strings.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import QuerySet

from runs.follow import Item
from runs.models import Run, Session
from runs.states import CancelSource, Multitask, OnDisconnect, Origin

Data: TypeAlias = dict[str, Any]
Id: TypeAlias = UUID | str  # a string that is no UUID is an unknown id
Actor: TypeAlias = AbstractBaseUser


# Sessions


def agents() -> list[Data]:
    """The configured agents: ``[{"name", "title", "description", "default"}]``, the default one first."""


def create_session(
    actor: Actor, *, agent: str | None = None, title: str = "", origin: Origin = Origin.CHAT
) -> Data:
    """Open a session; Session. Raises Invalid for an agent that is not configured."""


def session_snapshot(actor: Actor, session_id: Id) -> Data:
    """The Session as it is now; projection and revision come from one statement."""


def sessions(actor: Actor, *, search: str = "", status: str = "", origin: Origin | None = Origin.CHAT) -> QuerySet[Session]:
    """One's own sessions, most recently changed first; for paging. Represent a page with ``represent_sessions``."""


def represent_sessions(page: Sequence[Session]) -> list[Data]:
    """Session for each, in a fixed number of queries."""


def rename_session(actor: Actor, session_id: Id, title: str) -> Data:
    """Give a session a title of the user's; Session."""


async def delete_session(actor: Actor, session_id: Id, *, reason: str = "") -> None:
    """Force-cancel what is active, then delete the session, its log and its checkpoints. An audit entry stays."""


# Turns


def start_turn(
    actor: Actor,
    session_id: Id,
    text: str,
    *,
    key: str | None = None,
    multitask: str = Multitask.REJECT,
    on_disconnect: str = OnDisconnect.CONTINUE,
    stream_modes: Sequence[str] = (),
) -> Data:
    """Admit a turn: one transaction that makes run and user message durable. Returns the Run.

    ``key`` is the idempotency key: the same key with the same request returns the same run, with another
    request raises IdempotencyConflict. ``stream_modes`` may name "updates" and "custom", whose chunks are
    then logged as graph.update and graph.custom. Raises Invalid, TooLarge, RunActive, AgentMismatch,
    QueueFull, Unavailable.
    """


def answer(actor: Actor, run_id: Id, answers: Mapping[str, Any]) -> Data:
    """Answer all questions of a waiting run, ``{question id: value}``; Run. A second answer raises NotWaiting."""


def resume(actor: Actor, run_id: Id) -> Data:
    """Go on from the checkpoint of an interrupted run in a new run; the new Run."""


def retry(actor: Actor, run_id: Id, text: str | None = None) -> Data:
    """Run the session's latest turn again, optionally with other words; the new Run."""


def dismiss(actor: Actor, run_id: Id) -> Data:
    """Close an interrupted run: its history will be repaired, the session is idle; Run."""


def get_run(actor: Actor, run_id: Id) -> Data:
    """Run."""


def runs_of(actor: Actor, session_id: Id) -> QuerySet[Run]:
    """The session's runs, newest first; for paging. Represent a page with ``represent_runs``."""


def represent_runs(page: Sequence[Run]) -> list[Data]:
    """Run for each, in a fixed number of queries."""


# Cancel


def cancel_run(actor: Actor, run_id: Id, *, reason: str = "", source: str = CancelSource.USER) -> Data:
    """Request that this run be cancelled; returns the Cancellation at once, settled or not.

    Acceptance is durable: from then on the run can become nothing but cancelled. It does not undo what
    tools have done, and it does not wait. Of a finished run: ``id`` None and outcome ``already_finished``.
    """


def cancel_session(actor: Actor, session_id: Id, *, reason: str = "", source: str = CancelSource.USER) -> Data:
    """Request that the active run and every queued run be cancelled; the Cancellation of the first in line."""


async def wait_for_cancellation(cancellation: Data, seconds: float | None) -> Data:
    """The Cancellation again, once it has settled or ``seconds`` have passed (None: until it settles)."""


def force_cancel(actor: Actor, run_id: Id, reason: str) -> Data:
    """End a run durably without its worker and fence whatever still lives; Cancellation. Needs the permission."""


# Reading


async def history(actor: Actor, session_id: Id, *, limit: int | None = None, before: str | None = None) -> Data:
    """``{"session": Session, "messages": [Message], "run": Run | None}``, oldest first.

    ``run`` is the latest run; follow on from its ``last_seq``.
    """


def events(actor: Actor, run_id: Id, *, after: int = 0, limit: int = 500) -> Data:
    """A page of a run's log: ``{"events": [Event], "last_seq": int, "done": bool}``. Raises CursorGone."""


def follow_session(actor: Actor, session_id: Id, cursor: tuple[Id, int] | None = None) -> AsyncIterator[Item]:
    """Everything that happens in a session, in order, each event once; see ``runs.follow``.

    The first item is SessionChanged. Without a cursor events follow from its ``active_run.last_seq``; with
    ``(run, seq)`` from right behind that. Close the iterator (``aclose``) to leave. It ends after
    SessionDeleted. Raises NotFound and CursorGone before the first item.
    """


def follow_run(actor: Actor, run_id: Id, after: int = 0) -> AsyncIterator[Item]:
    """The Event items of one run behind ``after``; ends after the terminal event."""


def follow_user(actor: Actor) -> AsyncIterator[Item]:
    """SummaryChanged and SessionDeleted for all of one's own sessions, live."""
