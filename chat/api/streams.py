"""Event streams (server-sent events): a run's log from a point on, live until its terminal event.

A stream is transport. That it ends means nothing to the run, with one exception: the connection that
started a run whose ``on_disconnect`` is ``cancel`` and streams its answer. When that one goes away before
the run has ended, a cancel is requested.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import cast

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from chat import presence
from chat.api.negotiation import EVENT_STREAM
from chat.logins import Login
from chat.presence import Kind, Presence
from runs import operations
from runs.database import in_thread
from runs.errors import EngineError
from runs.follow import Event, Item
from runs.operations import Data, Id
from runs.states import CancelSource, OnDisconnect

logger = logging.getLogger(__name__)

# Seconds without an event after which a comment is sent, so that no proxy takes the stream for dead.
KEEP_ALIVE = 15.0
# Milliseconds after which a client that was cut off should come back.
_RETRY = 1000

_leaving: set[asyncio.Task[None]] = set()


async def resumed(login: Login, run_id: Id, after: int) -> HttpResponseBase:
    """The stream of what comes after ``after``; 204 when that is nothing, now and for ever."""
    page = await in_thread(operations.events, login.user, run_id, after=after, limit=1)
    if page["done"] and not page["events"]:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    return _response(RunStream(login, presence.enter(Kind.STREAM, login), run_id, after))


async def started(login: Login, start: Callable[[], Data]) -> HttpResponseBase:
    """Start a run and stream it from its first event."""
    place = presence.enter(Kind.STREAM, login)
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
    stream = RunStream(login, place, run["id"], after=0, cancels=run["on_disconnect"] == OnDisconnect.CANCEL)
    response = _response(stream)
    response.headers["Location"] = reverse("api:run", args=[run["id"]])
    request = asyncio.current_task()
    if request is not None:
        # Between this return and the stream's first step the request may be cancelled, too.
        request.add_done_callback(lambda task: stream.close() if task.cancelled() else None)
    return response


class RunStream:
    """The body of an event stream. ``close`` is for a stream whose iteration never began."""

    def __init__(
        self, login: Login, place: Presence, run_id: Id, after: int, *, cancels: bool = False
    ) -> None:
        self._login = login
        self._place = place
        self._run_id = run_id
        self._after = after
        self._cancels = cancels  # until the run has ended: whoever goes then takes it along

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            yield f"retry: {_RETRY}\n\n"
            following = operations.follow_run(self._login.user, self._run_id, self._after)
            # Both in this order: what waits for the next item has to let go of it before it can be closed.
            async with (
                aclosing(cast(AsyncGenerator[Item, None], following)) as items,
                aclosing(self._frames(items)) as frames,
            ):
                async for text in frames:
                    yield text
        except EngineError as error:  # the headers are out; the client comes back and meets it there
            logger.info("The event stream of run %s ends early: %s", self._run_id, error.message)
        finally:
            self.close()

    async def _frames(self, items: AsyncIterator[Item]) -> AsyncGenerator[str, None]:
        while True:
            following: asyncio.Future[Item | None] = asyncio.ensure_future(anext(items, None))
            try:
                while not following.done():
                    await asyncio.wait(
                        (following, self._place.ended),
                        timeout=KEEP_ALIVE,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if self._place.ended.done():
                        return
                    if not following.done():
                        yield ": keep-alive\n\n"
                item = following.result()
            finally:
                await _end(following)
            if item is None:
                return
            if isinstance(item, Event):
                if item.terminal:
                    self._cancels = False
                yield f"id: {item.seq}\nevent: {item.type}\ndata: {item.json}\n\n"

    def close(self) -> None:
        """Give the place back and, where that is the run's policy, request its cancel. Twice is fine."""
        ended_by_us = self._place.ended.done()
        self._place.close()
        if self._cancels and not ended_by_us:
            _cancel(self._login, self._run_id)
        self._cancels = False


async def _end(task: asyncio.Future[Item | None]) -> None:
    """Cancel what is still waiting for the next item, and wait until it has let go of the iterator."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


def _response(stream: RunStream) -> StreamingHttpResponse:
    return StreamingHttpResponse(
        stream,
        content_type=EVENT_STREAM,
        # no-transform keeps proxies from compressing, which holds events back; the second is nginx's word.
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


def _started_for_nobody(login: Login, starting: asyncio.Future[Data]) -> None:
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
    try:
        await in_thread(
            operations.cancel_run,
            login.user,
            run_id,
            reason="The connection that started the turn was closed.",
            source=CancelSource.DISCONNECT,
        )
    except EngineError as error:  # deleted meanwhile, or the like: there is nothing left to cancel
        logger.info("Run %s was not cancelled after its client left: %s", run_id, error.message)
