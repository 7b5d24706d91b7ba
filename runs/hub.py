"""What this process follows: one membership per session, however many followers, and one poll for all.

A change of a session is read once for all its followers. The notices of the bus may be lost; so about
every second one query looks whether a followed session has moved.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from django.db.models import Count, Max, OuterRef, Subquery

from runs.bus import Bus, Message, session_group, user_group
from runs.database import in_thread
from runs.models import Run, Session

logger = logging.getLogger(__name__)

# A loss shows at the second poll behind it, so it is repaired within two seconds.
POLL_SECONDS = 0.8
# The layer may have forgotten us (a restart, an expiry): join again this often.
REFRESH_POLLS = 12
# Changes that come together, in seconds, such as a run queued and started, are read once.
_TOGETHER = 0.025
# A follower further behind than this reads the log instead.
_FEED_LIMIT = 500

Place: TypeAlias = tuple[int, int]  # position of a run in its session, seq
Snapshot: TypeAlias = dict[str, Any]  # Session of the wire contract


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
        """Add a notice; when the follower is too far behind, drop all and remember that."""
        if len(self._messages) >= _FEED_LIMIT:
            self._messages.clear()
            self.lost = True
        else:
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


class Hub:
    """The feeds of this process, by session and by user."""

    current: ClassVar["Hub | None"] = None

    def __init__(self, bus: Bus, read: Callable[[UUID], Snapshot | None]) -> None:
        self._bus = bus
        self._read = read  # in a database thread
        self._sessions: dict[UUID, set[Feed]] = defaultdict(set)
        self._users: dict[Any, set[Feed]] = defaultdict(set)
        self._seen: dict[UUID, tuple[datetime, Place]] = {}  # by the last poll
        self._reading: dict[UUID, asyncio.Task[None]] = {}
        self._lists: dict[Any, tuple[datetime, int] | None] = {}
        self.tasks: list[asyncio.Task[None]] = []  # the side loop

    @classmethod
    def open(cls, bus: Bus, read: Callable[[UUID], Snapshot | None]) -> "Hub":
        """Begin to listen and to poll, and become the process's hub; ``read`` gives a session's snapshot."""
        hub = cls(bus, read)
        hub.tasks = [asyncio.create_task(hub._poll_forever(), name="follow poll")]
        cls.current = hub
        return hub

    async def close(self) -> None:
        """Stop polling; the followers are their own owners' to close."""
        if Hub.current is self:
            Hub.current = None
        unfinished = [*self.tasks, *self._reading.values()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

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
            except Exception:  # the database may be away; the next poll will tell
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
        before = self._seen.get(session_id)
        if state is None or before is None or before[0] != state[0]:
            self._read_soon(session_id)
        if state is None:
            return
        self._seen[session_id] = state
        for feed in self._sessions[session_id]:
            # What was there a poll ago and has not come since is not on its way any more.
            if before is not None and feed.place is not None and feed.place < before[1]:
                feed.expect_loss()

    def _read_soon(self, session_id: UUID) -> None:
        if session_id in self._sessions and session_id not in self._reading:
            task = asyncio.create_task(self._read_and_tell(session_id), name=f"snapshot {session_id}")
            self._reading[session_id] = task

    async def _read_and_tell(self, session_id: UUID) -> None:
        try:
            await asyncio.sleep(_TOGETHER)
        finally:
            del self._reading[session_id]  # what changes from now on is read again
        try:
            snapshot = await in_thread(self._read, session_id)
        except Exception:  # the database may be away; the poll reads again when it is back
            logger.exception("The session %s could not be read for its followers.", session_id)
            self._seen.pop(session_id, None)
            return
        self._distribute(self._sessions.get(session_id, set()), {"kind": "snapshot", "session": snapshot})


def _read_states(session_ids: list[UUID]) -> dict[UUID, tuple[datetime, Place]]:
    latest = Run.objects.filter(session=OuterRef("pk"), position=OuterRef("last_position"))
    states: dict[UUID, tuple[datetime, Place]] = {}
    for ids in _chunks(session_ids, 500):
        rows = Session.objects.filter(id__in=ids).values_list(
            "id", "updated_at", "last_position", Subquery(latest.values("last_seq")[:1])
        )
        states |= {row[0]: (row[1], (row[2], row[3] or 0)) for row in rows}
    return states


def _read_lists(user_ids: list[Any]) -> dict[Any, tuple[datetime, int]]:
    owned = Session.objects.filter(owner__in=user_ids).values("owner")
    rows = owned.annotate(latest=Max("updated_at"), count=Count("id")).values_list("owner", "latest", "count")
    return {owner: (latest, count) for owner, latest, count in rows}


def _chunks(ids: list[UUID], size: int) -> Iterator[list[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
