"""Follow a session: subscribe, read the log from the client's cursor on, then pass events on as they come.

A notice of the channel layer may be lost or late. So an event from it is passed on only if it is the next
one; otherwise events are read from the log, in the order (position of the run, seq).

A client gets all events behind its cursor or none: if compaction has removed some of them, CursorGone is
raised. The history has their text.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import Q

from runs import statements, this_process
from runs.errors import CursorGone, NotFound, Unavailable
from runs.foundation.database import in_thread
from runs.live.bus import Message
from runs.live.hub import Hub, Mailbox
from runs.models import Cancellation, Run, RunEvent, Session
from runs.states import TERMINAL_TYPES
from runs.wire import contract, encoding, representations

# Events that are read from the log at a time, which bounds the memory of a follower far behind.
PAGE = 500
# Sessions in a user's live list, the most recent ones.
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
    """The session changed. A client ignores it if its cancellation_revision is lower than one it has."""

    session: contract.Session


@dataclass(frozen=True, slots=True)
class CancellationChanged:
    """A cancel became pending or settled."""

    session: str
    pending: bool
    revision: int


@dataclass(frozen=True, slots=True)
class EffectChanged:
    """A straggler ended after the run's end, so the effect of its tool call is known. Not in the log."""

    run: str
    tool_call: str
    effect: str


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """The session is gone."""

    session: str


@dataclass(frozen=True, slots=True)
class SummaryChanged:
    """An entry of the user's list changed."""

    summary: contract.SessionSummary


Item: TypeAlias = (
    Event | SessionChanged | CancellationChanged | EffectChanged | SessionDeleted | SummaryChanged
)


@dataclass(frozen=True, slots=True)
class _Offset:
    """Where a follower is in a session's stream."""

    position: int  # of the run it is in
    seq: int  # the last event that it has
    ended: bool  # whether that is the run's terminal event

    def is_right_before(self, position: int, seq: int) -> bool:
        """Whether that event is the next one."""
        if position == self.position:
            return seq == self.seq + 1
        return self.ended and position == self.position + 1 and seq == 1

    def is_before(self, position: int, seq: int) -> bool:
        """Whether that event is still to come."""
        return (position, seq) > (self.position, self.seq)


async def session(session_id: UUID, cursor: tuple[UUID, int] | None) -> AsyncGenerator[Item, None]:
    """The items of a session behind ``cursor``, or from now on; see ``runs.operations.follow_session``."""
    async with _hub().session(session_id) as mailbox:
        first, offset = await in_thread(_start, session_id, cursor)
        yield SessionChanged(first)
        follower = _SessionFollower(session_id, mailbox, first, offset, behind=cursor is not None)
        while not follower.over:
            async for event in follower.backfill():
                yield event
            for message in await mailbox.take():
                for item in follower.take(message):
                    yield item
            follower.check_loss()


class _SessionFollower:
    """What one follower has, and whether it has to read the log."""

    def __init__(
        self, session_id: UUID, mailbox: Mailbox, shown: contract.Session, offset: _Offset, *, behind: bool
    ) -> None:
        self.over = False
        self._id = session_id
        self._mailbox = mailbox
        self._move_to(offset)
        self._last_updated_at = shown["updated_at"]
        self._last_revision = shown["cancellation_revision"]  # of the last CancellationChanged
        self._needs_backfill = behind

    async def backfill(self) -> AsyncIterator[Event]:
        """The events of the log behind the offset."""
        while self._needs_backfill:
            page = await in_thread(_read_session, self._id, self._offset)
            for position, event in page:
                self._move_to(_Offset(position, event.seq, event.terminal))
                yield event
            self._needs_backfill = len(page) == PAGE or (bool(page) and self._offset.ended)

    def take(self, message: Message) -> Iterator[Item]:
        """The items of a notice. Events that are not the next ones are left to ``backfill``."""
        match message["kind"]:
            case "events":
                for position, event in _decode(message):
                    if self._offset.is_right_before(position, event.seq):
                        self._move_to(_Offset(position, event.seq, event.terminal))
                        # Runs that ended in the queue meanwhile may follow in the log.
                        self._needs_backfill |= event.terminal
                        yield event
                    elif self._offset.is_before(position, event.seq):
                        self._needs_backfill = True
            case "cancellation":
                if message["revision"] > self._last_revision:
                    self._last_revision = message["revision"]
                    yield CancellationChanged(str(self._id), message["pending"], self._last_revision)
            case "effect":
                yield EffectChanged(message["run"], message["tool_call"], message["effect"])
            case "snapshot":
                session = message["session"]
                if session is None:
                    self.over = True
                    yield SessionDeleted(str(self._id))
                elif session["updated_at"] != self._last_updated_at:
                    self._last_updated_at = session["updated_at"]
                    yield SessionChanged(session)

    def check_loss(self) -> None:
        """Read the log if the mailbox has lost something."""
        self._needs_backfill |= self._mailbox.lost
        self._mailbox.lost = False

    def _move_to(self, offset: _Offset) -> None:
        self._offset = offset
        self._mailbox.offset = (offset.position, offset.seq)


async def run(session_id: UUID, run_id: UUID, after: int) -> AsyncGenerator[Event, None]:
    """The events of one run with a seq above ``after``, up to its terminal one."""
    async with _hub().session(session_id) as mailbox:
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
            mailbox.offset = (0, 0)  # so that each poll with a newer event reports a loss
            for message in await mailbox.take():
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
            behind |= mailbox.lost
            mailbox.lost = False


async def user(user_id: Any) -> AsyncGenerator[Item, None]:
    """The summaries of a user's sessions as they change."""
    async with _hub().user(user_id) as mailbox:
        shown = dict(await in_thread(_summaries, user_id, None))
        while True:
            messages = await mailbox.take()
            named = {UUID(message["session"]) for message in messages}
            for message in messages:
                if message["kind"] == "deleted":  # it may be too old to be in ``shown``
                    shown.pop(UUID(message["session"]), None)
                    yield SessionDeleted(message["session"])
            if mailbox.lost:
                mailbox.lost, named = False, set()
            current = dict(await in_thread(_summaries, user_id, named or None))
            for session_id, summary in current.items():
                if shown.get(session_id) != summary:
                    shown[session_id] = summary
                    yield SummaryChanged(summary)
            missing = {key for key in shown if key not in current and (not named or key in named)}
            for session_id in await in_thread(_deleted, missing) if missing else ():
                del shown[session_id]
                yield SessionDeleted(str(session_id))


async def settled(cancellation: contract.Cancellation, seconds: float | None) -> contract.Cancellation:
    """The Cancellation once it has settled, or as it is after ``seconds`` (None: no limit).

    Its session's notices tell of it, and once a second it is looked up in case they were lost.
    """
    if cancellation["id"] is None or cancellation["settled_at"] is not None or seconds == 0:
        return cancellation
    cancellation_id = UUID(cancellation["id"])
    found: contract.Cancellation | None
    try:
        async with asyncio.timeout(seconds), _hub().session(UUID(cancellation["session"])) as mailbox:
            while (found := await in_thread(_cancellation, cancellation_id)) and not found["settled_at"]:
                await _change(mailbox)
    except TimeoutError:
        found = await in_thread(_cancellation, cancellation_id)
    return found or cancellation  # when its session is deleted, no more is known


async def _change(mailbox: Mailbox) -> None:
    """Wait for a notice of anything but events, or for a loss."""
    while True:
        messages = await mailbox.take()
        if mailbox.lost or any(message["kind"] != "events" for message in messages):
            mailbox.lost = False
            return


def _cancellation(cancellation_id: UUID) -> contract.Cancellation | None:
    found = Cancellation.objects.select_related("requested_by").filter(id=cancellation_id).first()
    return representations.cancellation(found) if found else None


def _hub() -> Hub:
    if this_process.engine is None:
        raise Unavailable  # only a process that serves can follow and wait
    return this_process.engine.hub


def _decode(message: Message) -> Iterator[tuple[int, Event]]:
    for seq, (type, json) in enumerate(message["events"], start=message["first"]):
        yield message["position"], Event(message["run"], seq, type, json, type in TERMINAL_TYPES)


def snapshot(session_id: UUID) -> contract.Session | None:
    """The Session, all of it as of one moment; None if it does not exist."""
    return snapshots([session_id])[session_id]


def snapshots(session_ids: Collection[UUID]) -> dict[UUID, contract.Session | None]:
    """By id, each Session as of one moment: read again if it changed meanwhile. None: it does not exist."""
    read: dict[UUID, contract.Session | None] = {}
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


def _start(session_id: UUID, cursor: tuple[UUID, int] | None) -> tuple[contract.Session, _Offset]:
    """The snapshot that a follower begins with, and the offset behind which its events begin."""
    while True:
        shown = snapshot(session_id)
        if shown is None:
            raise NotFound
        left_the_queue = Run.objects.filter(session=session_id, position__isnull=False)
        latest = left_the_queue.order_by("-position").first()
        updated_at = datetime.fromisoformat(shown["updated_at"])
        if statements.session_updates([session_id]) == [(session_id, updated_at)]:
            break
    offset = _Offset(0, 0, True)
    if latest is not None:
        active = shown["active_run"]
        seq = active["last_seq"] if active else latest.last_seq
        offset = _Offset(latest.position or 0, seq, latest.is_terminal)
    if cursor is not None:
        at = Run.objects.filter(id=cursor[0], session=session_id).first()
        if at is None:
            raise NotFound
        if at.position is not None:
            seq = min(cursor[1], at.last_seq)
            if _was_compacted(session_id, at.position, seq):
                raise CursorGone
            offset = _Offset(at.position, seq, at.is_terminal and seq == at.last_seq)
    return shown, offset


def _was_compacted(session_id: UUID, position: int, seq: int) -> bool:
    """Whether compaction has removed events of the session's stream behind this offset."""
    behind = Q(position=position, compacted_to__gt=seq) | Q(position__gt=position, compacted_to__gt=0)
    return Run.objects.filter(behind, session=session_id).exists()


def raise_if_compacted(compacted_to: int | None, seq: int) -> None:
    """Raise CursorGone if compaction has removed events behind ``seq``.

    ``compacted_to`` must come from the statement that read the events: compaction may go on meanwhile.
    """
    if compacted_to is not None and compacted_to > seq:
        raise CursorGone


def _read_session(session_id: UUID, offset: _Offset) -> list[tuple[int, Event]]:
    """A page of the session's stream as (position, event). The events of a run come after the terminal event
    of the earlier one. Raises CursorGone.
    """
    behind = Q(run__position=offset.position, seq__gt=offset.seq)
    if offset.ended:
        behind |= Q(run__position__gt=offset.position)
    rows = (
        RunEvent.objects.filter(behind, run__session=session_id)
        .order_by("run__position", "seq")
        .values_list("run_id", "seq", "type", "data", "at", "run__position", "run__compacted_to")[:PAGE]
    )
    page = []
    position, seq, ended = offset.position, offset.seq, offset.ended
    for row in rows:
        of_run = row[5] or 0
        if of_run != position and not ended:
            break
        raise_if_compacted(row[6], seq if of_run == position else 0)
        event = _event(row)
        position, seq, ended = of_run, event.seq, event.terminal
        page.append((position, event))
    return page


def _read_run(run_id: UUID, after: int) -> tuple[list[Event], bool]:
    """A page of the run's events, and whether it is the last: the run has ended or is gone.

    Raises CursorGone.
    """
    run = Run.objects.filter(id=run_id).first()
    found = RunEvent.objects.filter(run=run_id, seq__gt=after).order_by("seq")
    rows = list(found.values_list("run_id", "seq", "type", "data", "at", "run__compacted_to")[:PAGE])
    if rows:
        raise_if_compacted(rows[0][5], after)
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


def _summaries(user_id: Any, session_ids: set[UUID] | None) -> list[tuple[UUID, contract.SessionSummary]]:
    """(session id, summary) of the user's sessions or of these; at most SUMMARIES."""
    found = Session.objects.filter(owner=user_id, origin="chat")
    if session_ids is not None:
        found = found.filter(id__in=session_ids)
    page = representations.with_status(found).order_by("-updated_at")[:SUMMARIES]
    return [(session.id, representations.summary(session)) for session in page]
