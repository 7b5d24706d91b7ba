"""Who is connected to this process for longer than a request: by sockets and by event streams.

Each such presence is counted against its user's limit, ends within seconds when its login does, and is told
when the server leaves. The limits are per process: a user who is spread over two has twice as many.
"""

import asyncio
import logging
from collections import Counter
from enum import Enum, auto
from types import TracebackType
from typing import Self

from chat.access import logins
from chat.access.logins import Login
from runs.errors import EngineError
from runs.foundation.database import AWAY, in_thread

logger = logging.getLogger(__name__)

# Seconds between two looks at all logins; an ended one may hold on for this long and the look itself.
LOGIN_CHECK_INTERVAL = 3.0


class Kind(Enum):
    """What is counted."""

    SOCKET = auto()
    STREAM = auto()


# How many of a kind one user may have open in one process.
LIMITS = {Kind.SOCKET: 50, Kind.STREAM: 50}


class End(Enum):
    """Why the server ends a connection that its client would have kept."""

    LOGIN = auto()  # logged out, deactivated, password changed, token revoked or expired
    LEAVING = auto()  # the server is going away


class TooMany(EngineError):
    """You have too many open connections. Close some of them first."""

    code = "throttled"
    status = 429


class Presence:
    """A place among the user's connections. A context manager, so that the place is given back."""

    def __init__(self, kind: Kind, login: Login) -> None:
        self.kind = kind
        self.login = login
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def end(self, reason: End) -> None:
        """Ask whoever serves the connection to end it. Nothing happens when it was asked before."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def close(self) -> None:
        """Give the place back. Twice is fine."""
        _present.discard(self)
        self.ended.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_present: set[Presence] = set()
_watch: asyncio.Task[None] | None = None


def enter(kind: Kind, login: Login) -> Presence:
    """Take a place. Raises TooMany."""
    same = sum(1 for other in _present if other.kind is kind and other.login.user.pk == login.user.pk)
    if same >= LIMITS[kind]:
        raise TooMany
    presence = Presence(kind, login)
    _present.add(presence)
    _keep_watching()
    return presence


def count() -> Counter[Kind]:
    """How many there are of each kind."""
    return Counter(presence.kind for presence in _present)


def leave() -> None:
    """The server goes away: sockets close with 1012; streams end, and mean nothing to their runs by it."""
    for presence in list(_present):
        presence.end(End.LEAVING)


async def check_logins() -> None:
    """End the connections whose login does not hold any more."""
    for login in {presence.login for presence in _present}:
        if not await in_thread(logins.still_holds, login):
            for presence in list(_present):
                if presence.login == login:
                    presence.end(End.LOGIN)


def _keep_watching() -> None:
    global _watch  # noqa: PLW0603 (one per process, and asyncio keeps no strong reference to it)
    # A task of another loop is one of a loop that has ended, as test loops do.
    if _watch is None or _watch.done() or _watch.get_loop() is not asyncio.get_running_loop():
        _watch = asyncio.create_task(_watch_logins(), name="watch logins")


async def _watch_logins() -> None:
    while _present:
        await asyncio.sleep(LOGIN_CHECK_INTERVAL)
        try:
            await check_logins()
        except AWAY as error:
            logger.warning("The logins of open connections could not be checked: %s", error)
        except Exception:  # nothing may end the watch for good
            logger.exception("The logins of open connections could not be checked.")
