"""Waiting for a cancel to settle: by notice, and by looking every second in case the notice was lost."""

import asyncio
from typing import Any
from uuid import UUID

from runs import representations
from runs.database import in_thread
from runs.hub import POLL_SECONDS, Hub
from runs.models import Cancellation


async def wait(cancellation: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    """The Cancellation once it has settled, or as it is after ``seconds`` (None: no limit)."""
    if cancellation["id"] is None or cancellation["settled_at"] is not None or seconds == 0:
        return cancellation
    try:
        async with asyncio.timeout(seconds):
            return await _settled(UUID(cancellation["session"]), UUID(cancellation["id"]))
    except TimeoutError:
        return await in_thread(_read, UUID(cancellation["id"])) or cancellation


async def _settled(session_id: UUID, cancellation_id: UUID) -> dict[str, Any]:
    hub = Hub.current
    if hub is None:  # a command: nobody tells it anything
        while not (found := await in_thread(_read, cancellation_id)) or found["settled_at"] is None:
            await asyncio.sleep(POLL_SECONDS)
        return found
    async with hub.session(session_id) as feed:
        while True:
            found = await in_thread(_read, cancellation_id)
            if found is not None and found["settled_at"] is not None:
                return found
            while not feed.gone and not feed.state and not feed.lost:
                if any(message["kind"] != "events" for message in await feed.take()):
                    break
            feed.state, feed.lost = None, False


def _read(cancellation_id: UUID) -> dict[str, Any] | None:
    found = Cancellation.objects.select_related("requested_by").filter(id=cancellation_id).first()
    return representations.cancellation(found) if found else None
