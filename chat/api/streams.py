"""Event streams (server-sent events): a run's log from a point on, live until its terminal event."""

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
# Milliseconds after which a client that was cut off should come back.
_RETRY = 1000


async def resumed(login: Login, run_id: Id, after: int) -> HttpResponseBase:
    """The stream of what comes after ``after``; 204 when that is nothing, now and for ever.

    Raises NotFound and CursorGone.
    """
    page = await in_thread(operations.events, login.user, run_id, after=after, limit=1)
    if page["done"] and not page["events"]:
        return HttpResponse(status=HTTPStatus.NO_CONTENT)
    stream = RunStream(login, open_connections.register(Kind.STREAM, login), run_id, after)
    stream.close_if_cancelled()
    return response(stream)


async def started(login: Login, start: Callable[[], Started]) -> HttpResponseBase:
    """Start a run and stream it from its first event. Raises CursorGone if it was there, long ago."""
    stream, run = await run_connections.start(RunStream, login, start)
    if run.was_there:
        try:
            await in_thread(operations.events, login.user, run["id"], limit=1)
        except BaseException:  # a cancel, too: nobody else would give its place back
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
        except EngineError as error:  # the headers are out; the client comes back and meets it there
            logger.info("The event stream of run %s ends early: %s", self.run_id, error.message)
        finally:
            self.close()


def response(stream: AsyncIterable[str]) -> StreamingHttpResponse:
    """A response with this body that nobody on the way holds back."""
    return StreamingHttpResponse(
        stream,
        content_type=EVENT_STREAM,
        # no-transform keeps proxies from compressing, which holds events back; the second is nginx's word.
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )
