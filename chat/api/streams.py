"""Event streams (server-sent events): the events of a run, live, up to its terminal event."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing
from http import HTTPStatus

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from chat.access import open_connections, run_connections
from chat.access.logins import Login
from chat.access.open_connections import Kind
from chat.access.run_connections import RunConnection
from chat.api.async_view import EVENT_STREAM
from runs import operations
from runs.errors import EngineError
from runs.foundation.database import in_thread
from runs.operations import Id, Started

logger = logging.getLogger(__name__)

KEEP_ALIVE = ": keep-alive\n\n"
# Milliseconds after which a client that lost its connection should reconnect.
_RETRY = 1000


async def resumed(login: Login, run_id: Id, after: int) -> HttpResponseBase:
    """The stream of the events after ``after``; 204 when the run has ended and there are none.

    Raises NotFound and CursorGone.
    """
    page = await in_thread(operations.events, login.user, run_id, after=after, limit=1)
    if page["done"] and not page["events"]:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    stream = RunStream(login, open_connections.register(Kind.STREAM, login), run_id, after)
    stream.close_if_cancelled()
    return response(stream)


async def started(login: Login, start: Callable[[], Started]) -> HttpResponseBase:
    """Start a run and stream it from its first event.

    A repeated request gets the run that exists. Raises CursorGone when the log of that one is compacted.
    """
    stream, run = await run_connections.start(RunStream, login, start)
    if run.was_there:
        try:
            await in_thread(operations.events, login.user, run["id"], limit=1)
        except BaseException:  # a cancel, too: nothing else would close the stream
            stream.close()
            raise
    answer = response(stream)
    answer.headers["Location"] = reverse("api:run", args=[run["id"]])
    return answer


class RunStream(RunConnection):
    """The body of an event stream."""

    async def __aiter__(self) -> AsyncIterator[str]:
        try:
            yield f"retry: {_RETRY}\n\n"
            async with aclosing(self.events()) as events:
                async for event in events:
                    if event is None:
                        yield KEEP_ALIVE
                    else:
                        yield f"id: {event.seq}\nevent: {event.type}\ndata: {event.json}\n\n"
        except EngineError as error:  # the headers are sent; the client reconnects and gets the error then
            logger.info("The event stream of run %s ends early: %s", self.run_id, error.message)
        finally:
            self.close()


def response(stream: AsyncIterable[str]) -> StreamingHttpResponse:
    """A streaming response that proxies do not buffer."""
    return StreamingHttpResponse(
        stream,
        content_type=EVENT_STREAM,
        # no-transform forbids compression, which delays events. X-Accel-Buffering is for nginx.
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )
