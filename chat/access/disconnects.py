"""Connections that attend a run: they follow its log from a point on until its terminal event.

An attendance is transport. That it ends means nothing to the run, with one exception: the connection that
started a run whose ``on_disconnect`` is ``cancel`` and gets its answer. When that one goes away before the
run has ended, a cancel is requested.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from chat.access import open_connections
from chat.access.logins import Login
from chat.access.open_connections import End, Kind, Presence
from runs import operations
from runs.errors import DatabaseAway, EngineError
from runs.foundation import log_context
from runs.foundation.database import AWAY, in_thread
from runs.live.follow import Event, Item
from runs.operations import Id, Started
from runs.states import CancelSource, OnDisconnect

logger = logging.getLogger(__name__)

# Seconds without an event after which something is sent, so that no proxy takes the connection for dead.
KEEP_ALIVE = 15.0
# Seconds until a cancel that the database did not take is requested again.
_ASK_AGAIN = 1.0

_leaving: set[asyncio.Task[None]] = set()


class Attendance:
    """One connection's place at a run. ``close`` it, also when ``events`` was never begun."""

    def __init__(
        self, login: Login, place: Presence, run_id: Id, after: int = 0, *, cancels: bool = False
    ) -> None:
        self.run_id = run_id
        self._login = login
        self._place = place
        self._after = after
        self._cancels = cancels  # until the run has ended: whoever goes then takes it along

    @property
    def ended_by_us(self) -> End | None:
        """Why the server ended it, if it was the server."""
        ended = self._place.ended
        return ended.result() if ended.done() and not ended.cancelled() else None

    async def events(self) -> AsyncGenerator[Event | None, None]:
        """The run's events; None whenever there was none for KEEP_ALIVE seconds.

        Ends after the terminal event, and earlier when the server ends the connection or the run is deleted.
        Raises DatabaseAway, which is no disconnect: the run goes on.
        """
        following = operations.follow_run(self._login.user, self.run_id, self._after)
        async with aclosing(following) as items:
            while True:
                coming: asyncio.Future[Item | None] = asyncio.ensure_future(anext(items, None))
                try:
                    while not coming.done():
                        await asyncio.wait(
                            (coming, self._place.ended),
                            timeout=KEEP_ALIVE,
                            return_when=asyncio.FIRST_COMPLETED,
                        )
                        if self._place.ended.done():
                            return
                        if not coming.done():
                            yield None
                    item = coming.result()
                except AWAY as error:
                    logger.warning("Run %s can be followed no further for now: %s", self.run_id, error)
                    self.release()
                    raise DatabaseAway from None
                finally:
                    await _end(coming)
                if item is None:
                    return
                if isinstance(item, Event):
                    if item.terminal:
                        self.release()
                    yield item

    def release(self) -> None:
        """From now on the run does not depend on this connection any more."""
        self._cancels = False

    def close_if_cancelled(self) -> None:
        """Close when the request is cancelled: before a streaming body's first step nobody else would."""
        request = asyncio.current_task()
        if request is not None:
            request.add_done_callback(self._close_after)

    def _close_after(self, request: asyncio.Task[Any]) -> None:
        # Django swallows a cancel while it sends a response, and ends the request like any other.
        if request.cancelled() or request.cancelling():
            self.close()

    def close(self) -> None:
        """Give the place back and, where that is the run's policy, request its cancel. Twice is fine."""
        ended_by_us = self._place.ended.done()
        self._place.close()
        if self._cancels and not ended_by_us:
            _cancel(self._login, self.run_id)
        self.release()


A = TypeVar("A", bound=Attendance)


async def begin(kind: type[A], login: Login, start: Callable[[], Started]) -> tuple[A, Started]:
    """Start a run and attend it from its first event; the attendance and the Run.

    ``start`` is called in a database thread. Raises what it raises, and TooMany.
    """
    place = open_connections.enter(Kind.STREAM, login)
    starting = asyncio.ensure_future(in_thread(start))
    try:
        run = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The client left while the run was admitted. It may exist by now, and then its policy holds.
        place.close()
        starting.add_done_callback(lambda done: _started_for_nobody(login, done))
        raise
    except BaseException:
        place.close()
        raise
    log_context.bind(session=run["session"], run=run["id"])
    # Who repeats a request follows the run; only the connection that started it can take it along.
    cancels = run["on_disconnect"] == OnDisconnect.CANCEL and not run.was_there
    attendance = kind(login, place, run["id"], cancels=cancels)
    attendance.close_if_cancelled()
    return attendance, run


async def _end(task: asyncio.Future[Item | None]) -> None:
    """Cancel what is still waiting for the next item, and wait until it has let go of the iterator.

    That may take a moment, while Redis is away say, and whoever is cancelled meanwhile still waits: an
    iterator that is in use cannot be closed.
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


def _started_for_nobody(login: Login, starting: asyncio.Future[Started]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        run = starting.result()
        if run["on_disconnect"] == OnDisconnect.CANCEL:
            _cancel(login, run["id"])


def _cancel(login: Login, run_id: Id) -> None:
    """Request the cancel in a task of its own: the one we are in is being cancelled itself."""
    task = asyncio.get_running_loop().create_task(_request_cancel(login, run_id), name=f"disconnect {run_id}")
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)


async def _request_cancel(login: Login, run_id: Id) -> None:
    """Until it is accepted: nobody is left who could ask again."""
    while True:
        try:
            await in_thread(
                operations.cancel_run,
                login.user,
                run_id,
                reason="The connection that started the turn was closed.",
                source=CancelSource.DISCONNECT,
            )
        except AWAY as error:
            logger.warning("Run %s, whose client left, is not cancelled yet: %s", run_id, error)
            await asyncio.sleep(_ASK_AGAIN)
            continue
        except EngineError as error:  # deleted meanwhile, or the like: there is nothing left to cancel
            logger.info("Run %s was not cancelled after its client left: %s", run_id, error.message)
        return
