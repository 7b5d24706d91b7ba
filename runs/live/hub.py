"""What this process follows: one membership per session, however many followers, and one poll for all.

What has changed is read together, and once for all its followers; a session that cannot be represented
harms its own followers only. The notices of the bus may be lost; so about every second one query looks
whether a followed session has moved.
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
from runs.foundation.database import AWAY, in_thread
from runs.foundation.tasks import end
from runs.live.bus import Bus, Message, session_group, user_group
from runs.models import Session

logger = logging.getLogger(__name__)

# A loss shows at the second poll behind it, so it is repaired within two seconds.
POLL_SECONDS = 0.8
# The layer may have forgotten us (a restart, an expiry): join again this often.
REFRESH_POLLS = 12
# Changes that come together, in seconds, such as runs that begin at once, are read together.
_TOGETHER = 0.025
# A follower further behind than this reads the log instead.
_FEED_LIMIT = 500

Place: TypeAlias = tuple[int, int]  # position of a run in its session, seq
Snapshot: TypeAlias = dict[str, Any]  # Session of the wire contract
# Gives the snapshot of each of these sessions, None of those that are gone; called in a database thread.
Read: TypeAlias = Callable[[Collection[UUID]], dict[UUID, Snapshot | None]]


class Feed:
    """One follower's mailbox: bounded, and honest about what it lost.

    Besides the notices of the bus it gets ``{"kind": "snapshot", "session": Session | None}`` whenever the
    session has changed; None says that it is gone.
    """

    def __init__(self) -> None:
        self.lost = False
        # How far the follower has come in the session's stream; None if it does not look at events.
        self.place: Place | None = None
        self._messages: deque[Message] = deque()
        self._something = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a notice; when the follower is too far behind, drop what can be read again, and remember."""
        if len(self._messages) >= _FEED_LIMIT:
            self._messages = deque(_only_told(self._messages))
            self.lost = True
        self._messages.append(message)
        self._something.set()

    def expect_loss(self) -> None:
        """Something may have been missed: read the log again."""
        self.lost = True
        self._something.set()

    async def take(self) -> list[Message]:
        """Wait for something and take all notices. Look at ``lost`` as well."""
        await self._something.wait()
        self._something.clear()
        messages, self._messages = list(self._messages), deque()
        return messages


def _only_told(messages: Iterable[Message]) -> list[Message]:
    """Of these the newest notice of each thing that no follower reads by itself; few enough to leave room."""
    states: dict[str, Message] = {}  # of the session as a whole, by kind
    single: dict[tuple[str, str], Message] = {}
    for message in messages:
        match message["kind"]:
            case "events" | "changed":
                continue  # the log and the list are read again
            case "effect":
                single[message["run"], message["tool_call"]] = message
            case "deleted":
                single["deleted", message["session"]] = message
            case kind:
                states[kind] = message
    return [*list(single.values())[-_FEED_LIMIT // 2 :], *states.values()]


class Hub:
    """The feeds of this process, by session and by user."""

    def __init__(self, bus: Bus, read: Read) -> None:
        self._bus = bus
        self._read = read
        self._sessions: dict[UUID, set[Feed]] = defaultdict(set)
        self._users: dict[Any, set[Feed]] = defaultdict(set)
        self._seen: dict[UUID, Place] = {}  # by the last poll
        self._told: dict[UUID, datetime] = {}  # ``updated_at`` of the last snapshot
        self._changed: set[UUID] = set()  # since they were read
        self._faulty: set[UUID] = set()  # could not be represented when they were last read
        self._reading: asyncio.Task[None] | None = None
        self._lists: dict[Any, tuple[datetime, int] | None] = {}
        self.tasks: list[asyncio.Task[None]] = []  # the side loop

    @classmethod
    def open(cls, bus: Bus, read: Read) -> "Hub":
        """Begin to listen and to poll."""
        hub = cls(bus, read)
        hub.tasks = [asyncio.create_task(hub._poll_forever(), name="follow poll")]
        return hub

    async def close(self) -> None:
        """Stop polling; the followers are their own owners' to close."""
        await end([*self.tasks, *([self._reading] if self._reading else [])])

    @property
    def followers(self) -> int:
        """How many feeds are open."""
        return sum(map(len, self._sessions.values())) + sum(map(len, self._users.values()))

    @asynccontextmanager
    async def session(self, session_id: UUID) -> AsyncIterator[Feed]:
        """The feed of a session, from now on."""

        def hear(message: Message) -> None:
            if message["kind"] in ("changed", "cancellation", "deleted"):
                self._read_soon(session_id)
            if message["kind"] in ("events", "cancellation", "effect"):
                self._distribute(self._sessions[session_id], message)

        async with self._feed(self._sessions, session_id, session_group(session_id), hear) as feed:
            yield feed

    @asynccontextmanager
    async def user(self, user_id: Any) -> AsyncIterator[Feed]:
        """The feed of a user's list, from now on."""

        def hear(message: Message) -> None:
            self._distribute(self._users[user_id], message)

        async with self._feed(self._users, user_id, user_group(user_id), hear) as feed:
            yield feed

    @asynccontextmanager
    async def _feed(
        self, feeds: dict[Any, set[Feed]], key: Hashable, group: str, hear: Callable[[Message], None]
    ) -> AsyncIterator[Feed]:
        feed = Feed()
        members = feeds[key]
        members.add(feed)
        try:
            if len(members) == 1:
                await self._bus.listen(group, hear)
            yield feed
        finally:
            members.discard(feed)
            if not members and feeds.get(key) is members:
                del feeds[key]
                self._seen.pop(key, None)  # type: ignore[call-overload]
                self._told.pop(key, None)  # type: ignore[call-overload]
                self._faulty.discard(key)
                self._lists.pop(key, None)
                await self._bus.unlisten(group)

    @staticmethod
    def _distribute(members: set[Feed], message: Message) -> None:
        for feed in members:
            feed.put(message)

    async def _poll_forever(self) -> None:
        polls = 0
        while True:
            await asyncio.sleep(POLL_SECONDS)
            polls += 1
            try:
                await self.poll_step()
                if polls % REFRESH_POLLS == 0:
                    await self._bus.refresh()
            except AWAY as error:  # the next poll tells
                logger.warning("The followed sessions could not be polled: %s", error)
            except Exception:  # without polls nobody who follows would hear of what was lost on the way
                logger.exception("The followed sessions could not be polled.")

    async def poll_step(self) -> None:
        """Look once at everything that is followed, and make up for what nobody told."""
        followed = list(self._sessions)
        if followed:
            states = await in_thread(_read_states, followed)
            for session_id in followed:
                self._look(session_id, states.get(session_id))
        users = list(self._users)
        if users:
            lists = await in_thread(_read_lists, users)
            for user_id in users:
                if self._lists.get(user_id) != lists.get(user_id) and user_id in self._users:
                    self._lists[user_id] = lists.get(user_id)
                    for feed in self._users[user_id]:
                        feed.expect_loss()

    def _look(self, session_id: UUID, state: tuple[datetime, Place] | None) -> None:
        """What the poll saw of a session; None when it was not there any more."""
        if session_id not in self._sessions:
            return
        if state is None or state[0] != self._told.get(session_id):
            self._read_soon(session_id)
        if state is None:
            return
        before, self._seen[session_id] = self._seen.get(session_id), state[1]
        for feed in self._sessions[session_id]:
            # What was there a poll ago and has not come since is not on its way any more.
            if before is not None and feed.place is not None and feed.place < before:
                feed.expect_loss()

    def _read_soon(self, session_id: UUID) -> None:
        if session_id in self._sessions:
            self._changed.add(session_id)
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_changed(), name="snapshots")

    async def _read_changed(self) -> None:
        """Read what has changed, until nothing has changed meanwhile; one read at a time, so in order."""
        try:
            while self._changed:
                await asyncio.sleep(_TOGETHER)
                changed, self._changed = self._changed, set()
                faulty = changed & self._faulty
                for together in (list(changed - faulty), *([one] for one in faulty)):
                    if together:
                        await self._read_and_tell(together)
        except AWAY as error:  # the poll has them read when it is back
            logger.warning("What has changed could not be read for its followers: %s", error)
        finally:
            self._reading = None

    async def _read_and_tell(self, session_ids: Sequence[UUID]) -> None:
        """Read these together and tell their followers; a session that has a fault is found and left out."""
        try:
            snapshots = await in_thread(self._read, session_ids)
        except AWAY:
            raise
        # The data of one session may be at fault in any way, and the others are told all the same.
        except Exception as error:  # noqa: BLE001
            if len(session_ids) == 1:
                self._note_fault(session_ids[0], error)
                return
            middle = len(session_ids) // 2
            await self._read_and_tell(session_ids[:middle])
            await self._read_and_tell(session_ids[middle:])
        else:
            for session_id, snapshot in snapshots.items():
                self._tell(session_id, snapshot)

    def _note_fault(self, session_id: UUID, error: Exception) -> None:
        """Log it, once: each poll tries the session again."""
        if session_id in self._sessions and session_id not in self._faulty:
            self._faulty.add(session_id)
            logger.error("Session %s cannot be shown to its followers.", session_id, exc_info=error)

    def _tell(self, session_id: UUID, snapshot: Snapshot | None) -> None:
        self._faulty.discard(session_id)
        if session_id not in self._sessions:
            return
        if snapshot is not None:
            self._told[session_id] = datetime.fromisoformat(snapshot["updated_at"])
        self._distribute(self._sessions[session_id], {"kind": "snapshot", "session": snapshot})


def _read_states(session_ids: list[UUID]) -> dict[UUID, tuple[datetime, Place]]:
    rows = [row for ids in _chunks(session_ids, 512) for row in statements.ends_of_sessions(ids)]
    return {session_id: (at, (position, seq or 0)) for session_id, at, position, seq in rows}


def _read_lists(user_ids: list[Any]) -> dict[Any, tuple[datetime, int]]:
    owned = Session.objects.filter(owner__in=user_ids).values("owner")
    rows = owned.annotate(latest=Max("updated_at"), count=Count("id")).values_list("owner", "latest", "count")
    return {owner: (latest, count) for owner, latest, count in rows}


def _chunks(ids: list[UUID], size: int) -> Iterator[list[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
