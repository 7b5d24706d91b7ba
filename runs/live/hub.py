"""The followers in this process. Each followed session is listened to once, and one poll serves all.

Changed sessions are read together, each once for all its followers. A session that cannot be represented
affects its own followers only. Notices of the bus may be lost, so about once a second one query checks
whether a followed session has changed.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import Count, Max

from runs import statements
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.foundation.tasks import end
from runs.live.bus import Bus, Message, session_group, user_group
from runs.models import Session
from runs.wire import contract

logger = logging.getLogger(__name__)

# A lost notice is found by the second poll after it, so within two seconds.
POLL_SECONDS = 0.8
# Join the groups again after so many polls: the layer forgets members when it restarts or they expire.
REFRESH_POLLS = 12
# Changes within so many seconds are read together, such as runs that begin at once.
_COLLECT_SECONDS = 0.025
# Messages that wait for one follower. One that is further behind reads the log instead.
_MAILBOX_LIMIT = 500

Offset: TypeAlias = tuple[int, int]  # position of a run in its session, seq
Snapshot: TypeAlias = contract.Session
# Gives the snapshot of each session, or None if it is gone. Called in a database thread.
ReadSnapshots: TypeAlias = Callable[[Collection[UUID]], dict[UUID, Snapshot | None]]


class Mailbox:
    """The notices for one follower: bounded, and ``lost`` tells whether some were dropped.

    Besides the notices of the bus it gets ``{"kind": "snapshot", "session": Session | None}`` whenever the
    session has changed. None means that the session is gone.
    """

    def __init__(self) -> None:
        self.lost = False
        # Where the follower is in the session's stream; None if it does not read events.
        self.offset: Offset | None = None
        self._messages: deque[Message] = deque()
        self._something = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a notice. A full mailbox first drops those that can be read again, and sets ``lost``."""
        if len(self._messages) >= _MAILBOX_LIMIT:
            self._messages = deque(_newest_of_each(self._messages))
            self.lost = True
        self._messages.append(message)
        self._something.set()

    def suspect_loss(self) -> None:
        """Have the follower read again: it may have missed something."""
        self.lost = True
        self._something.set()

    async def take(self) -> list[Message]:
        """Wait until there is something, and take all notices. Check ``lost``, too."""
        await self._something.wait()
        self._something.clear()
        messages, self._messages = list(self._messages), deque()
        return messages


def _newest_of_each(messages: Iterable[Message]) -> list[Message]:
    """The newest notice of each thing that a follower does not read again: about half a mailbox at most."""
    states: dict[str, Message] = {}  # of the session as a whole, by kind
    single: dict[tuple[str, str], Message] = {}
    for message in messages:
        match message["kind"]:
            case "events" | "changed":
                continue  # the follower reads the log or the list again
            case "effect":
                single[message["run"], message["tool_call"]] = message
            case "deleted":
                single["deleted", message["session"]] = message
            case kind:
                states[kind] = message
    return [*list(single.values())[-_MAILBOX_LIMIT // 2 :], *states.values()]


class Hub:
    """The mailboxes of this process, by session and by user."""

    def __init__(self, bus: Bus, read: ReadSnapshots) -> None:
        self._bus = bus
        self._read = read
        self._sessions: dict[UUID, set[Mailbox]] = defaultdict(set)
        self._users: dict[Any, set[Mailbox]] = defaultdict(set)
        self._polled: dict[UUID, Offset] = {}  # as of the last poll
        self._sent_at: dict[UUID, datetime] = {}  # ``updated_at`` of the last snapshot that was sent
        self._changed: set[UUID] = set()  # sessions that changed since they were read
        self._faulty: set[UUID] = set()  # sessions that could not be represented at the last read
        self._reading: asyncio.Task[None] | None = None
        self._lists: dict[Any, tuple[datetime, int] | None] = {}
        self.tasks: list[asyncio.Task[None]] = []  # the side loop

    @classmethod
    def open(cls, bus: Bus, read: ReadSnapshots) -> "Hub":
        """A hub that polls."""
        hub = cls(bus, read)
        hub.tasks = [asyncio.create_task(hub._poll_forever(), name="follow poll")]
        return hub

    async def close(self) -> None:
        """Stop polling. Followers are closed by their owners."""
        await end([*self.tasks, *([self._reading] if self._reading else [])])

    @property
    def followers(self) -> int:
        """How many mailboxes are open."""
        return sum(map(len, self._sessions.values())) + sum(map(len, self._users.values()))

    @asynccontextmanager
    async def session(self, session_id: UUID) -> AsyncIterator[Mailbox]:
        """A mailbox for a session, from now on."""

        def receive(message: Message) -> None:
            if message["kind"] in ("changed", "cancellation", "deleted"):
                self._read_soon(session_id)
            if message["kind"] in ("events", "cancellation", "effect"):
                self._deliver(self._sessions[session_id], message)

        async with self._mailbox(self._sessions, session_id, session_group(session_id), receive) as mailbox:
            yield mailbox

    @asynccontextmanager
    async def user(self, user_id: Any) -> AsyncIterator[Mailbox]:
        """A mailbox for a user's list, from now on."""

        def receive(message: Message) -> None:
            self._deliver(self._users[user_id], message)

        async with self._mailbox(self._users, user_id, user_group(user_id), receive) as mailbox:
            yield mailbox

    @asynccontextmanager
    async def _mailbox(
        self,
        mailboxes: dict[Any, set[Mailbox]],
        key: Hashable,
        group: str,
        receive: Callable[[Message], None],
    ) -> AsyncIterator[Mailbox]:
        mailbox = Mailbox()
        members = mailboxes[key]
        members.add(mailbox)
        try:
            if len(members) == 1:
                await self._bus.listen(group, receive)
            yield mailbox
        finally:
            members.discard(mailbox)
            if not members and mailboxes.get(key) is members:
                del mailboxes[key]
                self._polled.pop(key, None)  # type: ignore[call-overload]
                self._sent_at.pop(key, None)  # type: ignore[call-overload]
                self._faulty.discard(key)
                self._lists.pop(key, None)
                await self._bus.unlisten(group)

    @staticmethod
    def _deliver(members: set[Mailbox], message: Message) -> None:
        for mailbox in members:
            mailbox.put(message)

    async def _poll_forever(self) -> None:
        polls = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            polls += 1
            try:
                await self.poll_step()
                if polls % REFRESH_POLLS == 0:
                    await self._bus.refresh()
            except DATABASE_UNAVAILABLE as error:  # the next poll makes up for it
                logger.warning("The followed sessions could not be polled: %s", error)
            except Exception:  # without polls, followers would not get what was lost
                logger.exception("The followed sessions could not be polled.")

    async def poll_step(self) -> None:
        """Check once everything that is followed, and have its followers read what they missed."""
        followed = list(self._sessions)
        if followed:
            states = await in_thread(_read_states, followed)
            for session_id in followed:
                self._compare(session_id, states.get(session_id))
        users = list(self._users)
        if users:
            lists = await in_thread(_read_lists, users)
            for user_id in users:
                if self._lists.get(user_id) != lists.get(user_id) and user_id in self._users:
                    self._lists[user_id] = lists.get(user_id)
                    for mailbox in self._users[user_id]:
                        mailbox.suspect_loss()

    def _compare(self, session_id: UUID, state: tuple[datetime, Offset] | None) -> None:
        """Compare what the poll found of a session (None: it is gone) with what was sent."""
        if session_id not in self._sessions:
            return
        if state is None or state[0] != self._sent_at.get(session_id):
            self._read_soon(session_id)
        if state is None:
            return
        before, self._polled[session_id] = self._polled.get(session_id), state[1]
        for mailbox in self._sessions[session_id]:
            # What was there one poll ago and has not arrived since was lost.
            if before is not None and mailbox.offset is not None and mailbox.offset < before:
                mailbox.suspect_loss()

    def _read_soon(self, session_id: UUID) -> None:
        if session_id in self._sessions:
            self._changed.add(session_id)
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_changed(), name="snapshots")

    async def _read_changed(self) -> None:
        """Read the changed sessions until none is left; one read at a time, so in order."""
        try:
            while self._changed:
                await asyncio.sleep(_COLLECT_SECONDS)
                changed, self._changed = self._changed, set()
                faulty = changed & self._faulty
                for together in (list(changed - faulty), *([one] for one in faulty)):
                    if together:
                        await self._read_and_send(together)
        except DATABASE_UNAVAILABLE as error:  # a poll has them read when the database is back
            logger.warning("What has changed could not be read for its followers: %s", error)
        finally:
            self._reading = None

    async def _read_and_send(self, session_ids: Sequence[UUID]) -> None:
        """Read these sessions together and send them. If that fails, halve them to find the faulty one."""
        try:
            snapshots = await in_thread(self._read, session_ids)
        except DATABASE_UNAVAILABLE:
            raise
        # The data of one session may be wrong in any way; the others are sent all the same.
        except Exception as error:  # noqa: BLE001
            if len(session_ids) == 1:
                self._note_fault(session_ids[0], error)
                return
            middle = len(session_ids) // 2
            await self._read_and_send(session_ids[:middle])
            await self._read_and_send(session_ids[middle:])
        else:
            for session_id, snapshot in snapshots.items():
                self._send(session_id, snapshot)

    def _note_fault(self, session_id: UUID, error: Exception) -> None:
        """Log the error once, although each poll tries the session again."""
        if session_id in self._sessions and session_id not in self._faulty:
            self._faulty.add(session_id)
            logger.error("Session %s cannot be shown to its followers.", session_id, exc_info=error)

    def _send(self, session_id: UUID, snapshot: Snapshot | None) -> None:
        self._faulty.discard(session_id)
        if session_id not in self._sessions:
            return
        if snapshot is not None:
            self._sent_at[session_id] = datetime.fromisoformat(snapshot["updated_at"])
        self._deliver(self._sessions[session_id], {"kind": "snapshot", "session": snapshot})


def _read_states(session_ids: list[UUID]) -> dict[UUID, tuple[datetime, Offset]]:
    rows = [row for ids in _chunks(session_ids, 512) for row in statements.ends_of_sessions(ids)]
    return {session_id: (at, (position, seq or 0)) for session_id, at, position, seq in rows}


def _read_lists(user_ids: list[Any]) -> dict[Any, tuple[datetime, int]]:
    owned = Session.objects.filter(owner__in=user_ids).values("owner")
    rows = owned.annotate(latest=Max("updated_at"), count=Count("id")).values_list("owner", "latest", "count")
    return {owner: (latest, count) for owner, latest, count in rows}


def _chunks(ids: list[UUID], size: int) -> Iterator[list[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
