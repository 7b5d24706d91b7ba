"""Followers that are in another process than the engine, as far as the channel layer can tell."""

from contextlib import asynccontextmanager

from runs.live import follow
from runs.live.bus import Bus
from runs.live.hub import Hub


@asynccontextmanager
async def followed_from_afar(engine):
    """Whoever begins to follow meanwhile hears of the engine over its channel layer alone."""
    bus = await Bus.open()
    near, engine.hub = engine.hub, Hub.open(bus, follow.snapshots)
    try:
        yield
    finally:
        await engine.hub.close()
        await bus.close()
        engine.hub = near
