"""What this process follows: one membership per session, however many followers, and one poll for all.

The notices of the bus may be lost; so every second one query looks whether a followed session has moved.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from django.db.models import Count, Max, OuterRef, Subquery

from runs.bus import Bus, Message, session_group, user_group
from runs.database import in_thread
from runs.models import Run, Session

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
# The layer may have forgotten us (a restart, an expiry): join again this often.
REFRESH_POLLS = 10
# A follower further behind than this reads the log instead.
_FEED_LIMIT = 500

State: TypeAlias = tuple[
    datetime, int | None, int | None
]  # updated_at; position and last_seq of the latest run


class Feed:
    """One follower's mailbox: bounded, and honest about what it lost."""

    def __init__(self) -> None:
        self.lost = False
        self.state: State | None = None
        self.gone = False
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

    def look(self, state: State | None) -> None:
        """The poll saw the session in this state, or (None) did not see it any more."""
        self.state, self.gone = state, state is None
        self._something.set()

    def expect_loss(self) -> None:
        """Something may have been missed: read the log again."""
        self.lost = True
        self._something.set()

    async def take(self) -> list[Message]:
        """Wait for something and take all notices. Look at ``lost``, ``state`` and ``gone`` as well."""
        await self._something.wait()
        self._something.clear()
        messages, self._messages = list(self._messages), deque()
        return messages


class Hub:
    """The feeds of this process, by session and by user."""

    current: ClassVar["Hub | None"] = None

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._sessions: dict[UUID, set[Feed]] = defaultdict(set)
        self._users: dict[Any, set[Feed]] = defaultdict(set)
        self._seen: dict[UUID, State | None] = {}
        self._lists: dict[Any, tuple[datetime, int] | None] = {}
        self.tasks: list[asyncio.Task[None]] = []  # the side loop

    @classmethod
    def open(cls, bus: Bus) -> "Hub":
        """Begin to listen and to poll, and become the process's hub."""
        hub = cls(bus)
        hub.tasks = [asyncio.create_task(hub._poll_forever(), name="follow poll")]
        cls.current = hub
        return hub

    async def close(self) -> None:
        """Stop polling; the followers are their own owners' to close."""
        if Hub.current is self:
            Hub.current = None
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def followers(self) -> int:
        """How many feeds are open."""
        return sum(map(len, self._sessions.values())) + sum(map(len, self._users.values()))

    @asynccontextmanager
    async def session(self, session_id: UUID) -> AsyncIterator[Feed]:
        """The feed of a session, from now on."""
        async with self._feed(self._sessions, session_id, session_group(session_id)) as feed:
            yield feed

    @asynccontextmanager
    async def user(self, user_id: Any) -> AsyncIterator[Feed]:
        """The feed of a user's list, from now on."""
        async with self._feed(self._users, user_id, user_group(user_id)) as feed:
            yield feed

    @asynccontextmanager
    async def _feed(self, feeds: dict[Any, set[Feed]], key: Hashable, group: str) -> AsyncIterator[Feed]:
        feed = Feed()
        members = feeds[key]
        members.add(feed)
        try:
            if len(members) == 1:
                await self._bus.listen(group, lambda message: self._distribute(members, message))
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
        """Look once at every followed session, and tell the feeds of those that have moved."""
        followed = list(self._sessions)
        if followed:
            states = await in_thread(_read_states, followed)
            for session_id in followed:
                state = states.get(session_id)
                if session_id in self._seen and self._seen[session_id] == state:
                    continue
                if session_id in self._sessions:
                    self._seen[session_id] = state
                    for feed in self._sessions[session_id]:
                        feed.look(state)
        users = list(self._users)
        if users:
            lists = await in_thread(_read_lists, users)
            for user_id in users:
                if self._lists.get(user_id) != lists.get(user_id) and user_id in self._users:
                    self._lists[user_id] = lists.get(user_id)
                    for feed in self._users[user_id]:
                        feed.expect_loss()


def _read_states(session_ids: list[UUID]) -> dict[UUID, State]:
    latest = Run.objects.filter(session=OuterRef("pk"), position=OuterRef("last_position"))
    states: dict[UUID, State] = {}
    for ids in _chunks(session_ids, 500):
        rows = Session.objects.filter(id__in=ids).values_list(
            "id", "updated_at", "last_position", Subquery(latest.values("last_seq")[:1])
        )
        states |= {row[0]: (row[1], row[2], row[3]) for row in rows}
    return states


def _read_lists(user_ids: list[Any]) -> dict[Any, tuple[datetime, int]]:
    owned = Session.objects.filter(owner__in=user_ids).values("owner")
    rows = owned.annotate(latest=Max("updated_at"), count=Count("id")).values_list("owner", "latest", "count")
    return {owner: (latest, count) for owner, latest, count in rows}


def _chunks(ids: list[UUID], size: int) -> Iterator[list[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
