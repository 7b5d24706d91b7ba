"""Followers that are in another process than the engine, as far as the channel layer can tell."""

from contextlib import asynccontextmanager

from runs import follow
from runs.bus import Bus
from runs.hub import Hub


@asynccontextmanager
async def followed_from_afar(engine):
    """Whoever begins to follow meanwhile hears of the engine over its channel layer alone."""
    bus = await Bus.open()
    Bus.current = engine.bus
    hub = Hub.open(bus, follow.snapshots)
    try:
        yield
    finally:
        await hub.close()
        await bus.close()
        Hub.current = engine.hub
