"""Connections that stream the events of one run, up to its terminal event.

The end of a connection does not affect its run, with one exception. A run may have ``on_disconnect`` set to
``cancel``. Then its cancel is requested when the connection that started it closes before the run has ended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from chat.access import open_connections
from chat.access.logins import Login
from chat.access.open_connections import EndReason, Kind, OpenConnection
from runs import operations
from runs.errors import DatabaseUnavailable, EngineError
from runs.foundation import log_context
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.live.follow import Event, Item
from runs.operations import Id, Started
from runs.states import CancelSource, OnDisconnect

logger = logging.getLogger(__name__)

# Seconds without an event after which a keep-alive is sent. Proxies close connections that are silent.
KEEP_ALIVE = 15.0
# Seconds until a cancel is requested again, when the database was unavailable.
_RETRY_AFTER = 1.0

# The cancel requests in progress: asyncio keeps no strong reference to its tasks.
_cancelling: set[asyncio.Task[None]] = set()


class RunConnection:
    """A client's connection to one run. ``close`` it, also when ``events`` was never begun."""

    def __init__(
        self,
        login: Login,
        connection: OpenConnection,
        run_id: Id,
        after: int = 0,
        *,
        cancel_on_close: bool = False,
    ) -> None:
        self.run_id = run_id
        self._login = login
        self._connection = connection
        self._after = after
        self._cancel_on_close = cancel_on_close  # reset when the run ends

    @property
    def end_reason(self) -> EndReason | None:
        """Why the server ended the connection; None if the server did not."""
        ended = self._connection.ended
        return ended.result() if ended.done() and not ended.cancelled() else None

    async def events(self) -> AsyncGenerator[Event | None, None]:
        """The run's events; None whenever there was none for KEEP_ALIVE seconds.

        Ends after the terminal event, and earlier when the server ends the connection or the run is deleted.
        Raises DatabaseUnavailable. That is no disconnect: the run goes on.
        """
        following = operations.follow_run(self._login.user, self.run_id, self._after)
        async with aclosing(following) as items:
            while True:
                coming: asyncio.Future[Item | None] = asyncio.ensure_future(anext(items, None))
                try:
                    while not coming.done():
                        await asyncio.wait(
                            (coming, self._connection.ended),
                            timeout=KEEP_ALIVE,
                            return_when=asyncio.FIRST_COMPLETED,
                        )
                        if self._connection.ended.done():
                            return
                        if not coming.done():
                            yield None
                    item = coming.result()
                except DATABASE_UNAVAILABLE as error:
                    logger.warning("Run %s can be followed no further for now: %s", self.run_id, error)
                    self.detach()
                    raise DatabaseUnavailable from None
                finally:
                    await _end(coming)
                if item is None:
                    return
                if isinstance(item, Event):
                    if item.terminal:
                        self.detach()
                    yield item

    def detach(self) -> None:
        """Let the run go on when this connection closes."""
        self._cancel_on_close = False

    def close_if_cancelled(self) -> None:
        """Close when the request is cancelled.

        A streaming body closes itself once its iteration has begun, and not before.
        """
        request = asyncio.current_task()
        if request is not None:
            request.add_done_callback(self._close_after)

    def _close_after(self, request: asyncio.Task[Any]) -> None:
        # Django swallows a cancel while it sends a response, and ends the request like any other.
        if request.cancelled() or request.cancelling():
            self.close()

    def close(self) -> None:
        """Unregister the connection and, if that is the run's policy, request its cancel.

        A second call does nothing.
        """
        ended_by_server = self._connection.ended.done()
        self._connection.close()
        if self._cancel_on_close and not ended_by_server:
            _cancel(self._login, self.run_id)
        self.detach()


C = TypeVar("C", bound=RunConnection)


async def start(
    connection_type: type[C], login: Login, start_run: Callable[[], Started]
) -> tuple[C, Started]:
    """Start a run and connect to it from its first event; the connection and the Run.

    ``start_run`` is called in a database thread. Raises what it raises, and TooMany.
    """
    connection = open_connections.register(Kind.STREAM, login)
    starting = asyncio.ensure_future(in_thread(start_run))
    try:
        run = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The client left while the run was admitted. The run may exist by now, and then its policy holds.
        connection.close()
        starting.add_done_callback(lambda done: _cancel_if_started(login, done))
        raise
    except BaseException:
        connection.close()
        raise
    log_context.bind(session=run["session"], run=run["id"])
    # A client that repeats a request follows the run. Only the connection that started it can cancel it.
    cancel_on_close = run["on_disconnect"] == OnDisconnect.CANCEL and not run.was_there
    run_connection = connection_type(login, connection, run["id"], cancel_on_close=cancel_on_close)
    run_connection.close_if_cancelled()
    return run_connection, run


async def _end(task: asyncio.Future[Item | None]) -> None:
    """Cancel the task that waits for the next item, and wait for its end.

    An iterator cannot be closed while a task uses it. The end may take a moment, for example while Redis does
    not answer. A cancel of the caller is raised again after it.
    """
    cancelled = None
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _cancel_if_started(login: Login, starting: asyncio.Future[Started]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        run = starting.result()
        if run["on_disconnect"] == OnDisconnect.CANCEL:
            _cancel(login, run["id"])


def _cancel(login: Login, run_id: Id) -> None:
    """Request the cancel in a task of its own, since the current one is being cancelled itself."""
    task = asyncio.get_running_loop().create_task(_request_cancel(login, run_id), name=f"disconnect {run_id}")
    _cancelling.add(task)
    task.add_done_callback(_cancelling.discard)


async def _request_cancel(login: Login, run_id: Id) -> None:
    """Request the cancel until it is accepted. The client is gone and cannot ask again."""
    while True:
        try:
            await in_thread(
                operations.cancel_run,
                login.user,
                run_id,
                reason="The connection that started the turn was closed.",
                source=CancelSource.DISCONNECT,
            )
        except DATABASE_UNAVAILABLE as error:
            logger.warning("Run %s, whose client left, is not cancelled yet: %s", run_id, error)
            await asyncio.sleep(_RETRY_AFTER)
            continue
        except EngineError as error:  # deleted meanwhile, or the like: there is nothing left to cancel
            logger.info("Run %s was not cancelled after its client left: %s", run_id, error.message)
        return
