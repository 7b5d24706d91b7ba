"""The connections to this process that outlast a request: WebSockets and event streams.

Each counts against a limit of its user. It ends a few seconds after its login has ended, and when the server
shuts down. The limits are per process: a user who is connected to two processes has twice as many.
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
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread

logger = logging.getLogger(__name__)

# Seconds between two checks of all logins.
LOGIN_CHECK_INTERVAL = 3.0


class Kind(Enum):
    """What is counted."""

    SOCKET = auto()
    STREAM = auto()


# How many of a kind one user may have open in one process.
LIMITS = {Kind.SOCKET: 50, Kind.STREAM: 50}


class EndReason(Enum):
    """Why the server ends a connection that its client would have kept."""

    LOGIN = auto()  # logged out, deactivated, password changed, token revoked or expired
    LEAVING = auto()  # the server shuts down


class TooMany(EngineError):
    """You have too many open connections. Close some of them first."""

    code = "throttled"
    status = 429


class OpenConnection:
    """One of a user's open connections. As a context manager it unregisters itself at the end."""

    def __init__(self, kind: Kind, login: Login) -> None:
        self.kind = kind
        self.login = login
        self.ended: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()

    def end(self, reason: EndReason) -> None:
        """Ask the code that serves the connection to end it. The first reason counts."""
        if not self.ended.done():
            self.ended.set_result(reason)

    def close(self) -> None:
        """Unregister it. A second call does nothing."""
        _open.discard(self)
        self.ended.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open: set[OpenConnection] = set()
_watch: asyncio.Task[None] | None = None


def register(kind: Kind, login: Login) -> OpenConnection:
    """Count a new connection of this user's. Raises TooMany."""
    same = sum(1 for other in _open if other.kind is kind and other.login.user.pk == login.user.pk)
    if same >= LIMITS[kind]:
        raise TooMany
    connection = OpenConnection(kind, login)
    _open.add(connection)
    _keep_watching()
    return connection


def count() -> Counter[Kind]:
    """How many there are of each kind."""
    return Counter(connection.kind for connection in _open)


def end_all() -> None:
    """End all connections, since the server shuts down. Sockets close with 1012.

    This is no disconnect: no run is cancelled by it.
    """
    for connection in list(_open):
        connection.end(EndReason.LEAVING)


async def check_logins() -> None:
    """End the connections whose login does not hold any more."""
    for login in {connection.login for connection in _open}:
        if not await in_thread(logins.still_holds, login):
            for connection in list(_open):
                if connection.login == login:
                    connection.end(EndReason.LOGIN)


def _keep_watching() -> None:
    global _watch  # noqa: PLW0603 (one per process, and asyncio keeps no strong reference to it)
    # In tests the task may belong to an event loop that has ended.
    if _watch is None or _watch.done() or _watch.get_loop() is not asyncio.get_running_loop():
        _watch = asyncio.create_task(_watch_logins(), name="watch logins")


async def _watch_logins() -> None:
    while _open:
        await asyncio.sleep(LOGIN_CHECK_INTERVAL)
        try:
            await check_logins()
        except DATABASE_UNAVAILABLE as error:
            logger.warning("The logins of open connections could not be checked: %s", error)
        except Exception:  # nothing may end the watch for good
            logger.exception("The logins of open connections could not be checked.")
