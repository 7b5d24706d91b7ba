"""Followers that hear of the engine over the channel layer alone, as if they were in another process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from runs.live import follow
from runs.live.bus import Bus
from runs.live.hub import Hub

if TYPE_CHECKING:
    from runs.worker.engine import Engine


@asynccontextmanager
async def remote_followers(engine: "Engine") -> AsyncIterator[None]:
    """Within the block, whoever begins to follow is such a follower."""
    bus = await Bus.open()
    near, engine.hub = engine.hub, Hub.open(bus, follow.snapshots)
    try:
        yield
    finally:
        await engine.hub.close()
        await bus.close()
        engine.hub = near
