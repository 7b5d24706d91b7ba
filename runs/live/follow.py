"""Follow a session: subscribe, backfill from the log, live, repair gaps from the log.

The channel layer is a hint, the log is the truth: an event is passed on only when it is the next one, and
whatever does not fit is read from the log, whose order is (position of the run, seq).

A log is passed on whole or not at all: a place behind which compaction took events out, were it the very
beginning, raises CursorGone. Its reader would have to tell such a hole from a loss; the history has it all.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import Q

from runs import process, statements
from runs.errors import CursorGone, NotFound, Unavailable
from runs.foundation.database import in_thread
from runs.live.bus import Message
from runs.live.hub import Feed, Hub
from runs.models import Run, RunEvent, Session
from runs.states import TERMINAL_TYPES
from runs.wire import encoding, representations

# Events read from the log at a time: bounds the memory of a follower far behind.
PAGE = 500
# The most recent sessions of a user that a live list watches.
SUMMARIES = 200


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


Item: TypeAlias = (
    Event | SessionChanged | CancellationChanged | EffectChanged | SessionDeleted | SummaryChanged
)


@dataclass(frozen=True, slots=True)
class _Place:
    """How far a follower has come in a session's stream."""

    position: int  # of the run it is in
    seq: int  # the last event it has
    ended: bool  # whether that was the run's terminal event

    def is_right_before(self, position: int, seq: int) -> bool:
        """Whether that event is the next one."""
        if position == self.position:
            return seq == self.seq + 1
        return self.ended and position == self.position + 1 and seq == 1

    def is_before(self, position: int, seq: int) -> bool:
        """Whether that event is still to come."""
        return (position, seq) > (self.position, self.seq)


async def session(session_id: UUID, cursor: tuple[UUID, int] | None) -> AsyncGenerator[Item, None]:
    """All of a session, from behind ``cursor`` or from now; see ``runs.operations.follow_session``."""
    async with _hub().session(session_id) as feed:
        first, place = await in_thread(_start, session_id, cursor)
        yield SessionChanged(first)
        follower = _SessionFollower(session_id, feed, first, place, behind=cursor is not None)
        while not follower.over:
            async for event in follower.backfill():
                yield event
            for message in await feed.take():
                for item in follower.take(message):
                    yield item
            follower.look()


class _SessionFollower:
    """What one follower has, and what it has to read again."""

    def __init__(
        self, session_id: UUID, feed: Feed, shown: dict[str, Any], place: _Place, *, behind: bool
    ) -> None:
        self.over = False
        self._id = session_id
        self._feed = feed
        self._go(place)
        self._shown = shown["updated_at"]
        self._told = shown["cancellation_revision"]  # of the last CancellationChanged
        self._behind = behind  # events may be in the log that we do not have

    async def backfill(self) -> AsyncIterator[Event]:
        """What the log has behind our place."""
        while self._behind:
            page = await in_thread(_read_session, self._id, self._place)
            for position, event in page:
                self._go(_Place(position, event.seq, event.terminal))
                yield event
            self._behind = len(page) == PAGE or (bool(page) and self._place.ended)

    def take(self, message: Message) -> Iterator[Item]:
        """The items of a notice; what does not follow on is left to the log."""
        match message["kind"]:
            case "events":
                for position, event in _decode(message):
                    if self._place.is_right_before(position, event.seq):
                        self._go(_Place(position, event.seq, event.terminal))
                        # Behind an ending there may be runs that ended in the queue meanwhile.
                        self._behind |= event.terminal
                        yield event
                    elif self._place.is_before(position, event.seq):
                        self._behind = True
            case "cancellation":
                if message["revision"] > self._told:
                    self._told = message["revision"]
                    yield CancellationChanged(str(self._id), message["pending"], self._told)
            case "effect":
                yield EffectChanged(message["run"], message["tool_call"], message["effect"])
            case "snapshot":
                session = message["session"]
                if session is None:
                    self.over = True
                    yield SessionDeleted(str(self._id))
                elif session["updated_at"] != self._shown:
                    self._shown = session["updated_at"]
                    yield SessionChanged(session)

    def look(self) -> None:
        """Whether the mailbox or the poll found that something was missed."""
        self._behind |= self._feed.lost
        self._feed.lost = False

    def _go(self, place: _Place) -> None:
        self._place = place
        self._feed.place = (place.position, place.seq)


async def run(session_id: UUID, run_id: UUID, after: int) -> AsyncGenerator[Event, None]:
    """The events of one run behind ``after``, up to its terminal one."""
    async with _hub().session(session_id) as feed:
        seq, behind = after, True
        while True:
            while behind:
                page, over = await in_thread(_read_run, run_id, seq)
                for event in page:
                    seq = event.seq
                    yield event
                if over:
                    return
                behind = len(page) == PAGE
            feed.place = (0, 0)  # each poll that finds us behind the session's latest event has us look again
            for message in await feed.take():
                if message["kind"] == "snapshot":
                    behind |= message["session"] is None
                if message["kind"] != "events" or message["run"] != str(run_id):
                    continue
                for _, event in _decode(message):
                    if event.seq == seq + 1:
                        seq = event.seq
                        yield event
                        if event.terminal:
                            return
                    elif event.seq > seq:
                        behind = True
            behind |= feed.lost
            feed.lost = False


async def user(user_id: Any) -> AsyncGenerator[Item, None]:
    """The summaries of a user's sessions as they change."""
    async with _hub().user(user_id) as feed:
        shown = dict(await in_thread(_summaries, user_id, None))
        while True:
            messages = await feed.take()
            named = {UUID(message["session"]) for message in messages}
            for message in messages:
                if message["kind"] == "deleted":  # perhaps one that is too old for us to have shown it
                    shown.pop(UUID(message["session"]), None)
                    yield SessionDeleted(message["session"])
            if feed.lost:
                feed.lost, named = False, set()
            current = dict(await in_thread(_summaries, user_id, named or None))
            for session_id, summary in current.items():
                if shown.get(session_id) != summary:
                    shown[session_id] = summary
                    yield SummaryChanged(summary)
            missing = {key for key in shown if key not in current and (not named or key in named)}
            for session_id in await in_thread(_deleted, missing) if missing else ():
                del shown[session_id]
                yield SessionDeleted(str(session_id))


def _hub() -> Hub:
    if process.current is None:
        raise Unavailable  # only a process that serves can follow
    return process.current.hub


def _decode(message: Message) -> Iterator[tuple[int, Event]]:
    for seq, (type, json) in enumerate(message["events"], start=message["first"]):
        yield message["position"], Event(message["run"], seq, type, json, type in TERMINAL_TYPES)


def snapshot(session_id: UUID) -> dict[str, Any] | None:
    """The Session, all of it from one moment; None if it is not there."""
    return snapshots([session_id])[session_id]


def snapshots(session_ids: Collection[UUID]) -> dict[UUID, dict[str, Any] | None]:
    """Each Session, all of it from one moment: read again when it moved meanwhile. None: not there."""
    read: dict[UUID, dict[str, Any] | None] = {}
    moved = set(session_ids)
    for _ in range(5):
        found = statements.sessions_with_status(list(moved))
        shown = representations.sessions(found)
        now = dict(statements.session_updates(list(moved)))
        read |= dict.fromkeys(moved) | dict(zip([session.id for session in found], shown, strict=True))
        moved = {session.id for session in found if now.get(session.id) != session.updated_at}
        if not moved:
            break
    return read


def _start(session_id: UUID, cursor: tuple[UUID, int] | None) -> tuple[dict[str, Any], _Place]:
    """The snapshot a follower begins with, and the place its events go on from."""
    while True:
        shown = snapshot(session_id)
        if shown is None:
            raise NotFound
        left_the_queue = Run.objects.filter(session=session_id, position__isnull=False)
        latest = left_the_queue.order_by("-position").first()
        updated_at = datetime.fromisoformat(shown["updated_at"])
        if statements.session_updates([session_id]) == [(session_id, updated_at)]:
            break
    place = _Place(0, 0, True)
    if latest is not None:
        active = shown["active_run"]
        seq = active["last_seq"] if active else latest.last_seq
        place = _Place(latest.position or 0, seq, latest.is_terminal)
    if cursor is not None:
        at = Run.objects.filter(id=cursor[0], session=session_id).first()
        if at is None:
            raise NotFound
        if at.position is not None:
            seq = min(cursor[1], at.last_seq)
            if _is_gone(session_id, at.position, seq):
                raise CursorGone
            place = _Place(at.position, seq, at.is_terminal and seq == at.last_seq)
    return shown, place


def _is_gone(session_id: UUID, position: int, seq: int) -> bool:
    """Whether events of the session's stream behind this place were compacted away."""
    behind = Q(position=position, compacted_to__gt=seq) | Q(position__gt=position, compacted_to__gt=0)
    return Run.objects.filter(behind, session=session_id).exists()


def refuse_holes(compacted_to: int | None, seq: int) -> None:
    """Raise CursorGone if events behind ``seq`` were compacted away.

    ``compacted_to`` has to come from the statement that read the events, since compaction goes on meanwhile.
    """
    if compacted_to is not None and compacted_to > seq:
        raise CursorGone


def _read_session(session_id: UUID, place: _Place) -> list[tuple[int, Event]]:
    """The next events of the session's stream; a later run only behind the earlier one's terminal event.

    Raises CursorGone.
    """
    behind = Q(run__position=place.position, seq__gt=place.seq)
    if place.ended:
        behind |= Q(run__position__gt=place.position)
    rows = (
        RunEvent.objects.filter(behind, run__session=session_id)
        .order_by("run__position", "seq")
        .values_list("run_id", "seq", "type", "data", "at", "run__position", "run__compacted_to")[:PAGE]
    )
    page = []
    position, seq, ended = place.position, place.seq, place.ended
    for row in rows:
        of_run = row[5] or 0
        if of_run != position and not ended:
            break
        refuse_holes(row[6], seq if of_run == position else 0)
        event = _event(row)
        position, seq, ended = of_run, event.seq, event.terminal
        page.append((position, event))
    return page


def _read_run(run_id: UUID, after: int) -> tuple[list[Event], bool]:
    """The next events of a run, and whether they are its last: it has ended, or it is gone.

    Raises CursorGone.
    """
    run = Run.objects.filter(id=run_id).first()
    found = RunEvent.objects.filter(run=run_id, seq__gt=after).order_by("seq")
    rows = list(found.values_list("run_id", "seq", "type", "data", "at", "run__compacted_to")[:PAGE])
    if rows:
        refuse_holes(rows[0][5], after)
    page = [_event(row) for row in rows]
    if run is None:
        return page, True
    at = page[-1].seq if page else after
    return page, run.is_terminal and at >= run.last_seq


def _event(row: Sequence[Any]) -> Event:
    run_id, seq, type, data, at = row[:5]
    return Event(
        str(run_id),
        seq,
        type,
        encoding.event(run_id, seq, type, encoding.encode(data), at),
        type in TERMINAL_TYPES,
    )


def _deleted(session_ids: set[UUID]) -> set[UUID]:
    return session_ids - set(Session.objects.filter(id__in=session_ids).values_list("id", flat=True))


def _summaries(user_id: Any, session_ids: set[UUID] | None) -> list[tuple[UUID, dict[str, Any]]]:
    """The user's summaries, all or the named ones; bounded to what a list shows."""
    found = Session.objects.filter(owner=user_id, origin="chat")
    if session_ids is not None:
        found = found.filter(id__in=session_ids)
    page = representations.with_status(found).order_by("-updated_at")[:SUMMARIES]
    return [(session.id, representations.summary(session)) for session in page]
