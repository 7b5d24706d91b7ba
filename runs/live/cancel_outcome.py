"""Waiting for a cancel to settle: by notice, and by looking every second in case the notice was lost."""

import asyncio
from uuid import UUID

from runs import process
from runs.errors import Unavailable
from runs.foundation.database import in_thread
from runs.live.hub import Feed
from runs.models import Cancellation
from runs.wire import contract, representations


async def wait(cancellation: contract.Cancellation, seconds: float | None) -> contract.Cancellation:
    """The Cancellation once it has settled, or as it is after ``seconds`` (None: no limit)."""
    if cancellation["id"] is None or cancellation["settled_at"] is not None or seconds == 0:
        return cancellation
    try:
        async with asyncio.timeout(seconds):
            settled = await _settled(UUID(cancellation["session"]), UUID(cancellation["id"]))
    except TimeoutError:
        settled = await in_thread(_read, UUID(cancellation["id"]))
    return settled or cancellation  # with its session deleted, nothing more is known


async def _settled(session_id: UUID, cancellation_id: UUID) -> contract.Cancellation | None:
    if process.current is None:
        raise Unavailable  # only a process that serves can wait
    async with process.current.hub.session(session_id) as feed:
        while True:
            found = await in_thread(_read, cancellation_id)
            if found is None or found["settled_at"] is not None:
                return found
            await _news(feed)


async def _news(feed: Feed) -> None:
    """Wait for a notice that is not about events, or for the mailbox to overflow."""
    while True:
        messages = await feed.take()
        if feed.lost or any(message["kind"] != "events" for message in messages):
            feed.lost = False
            return


def _read(cancellation_id: UUID) -> contract.Cancellation | None:
    found = Cancellation.objects.select_related("requested_by").filter(id=cancellation_id).first()
    return representations.cancellation(found) if found else None
