"""What of the engine lives in every process that serves: the bus, the feeds, the checkpoints, the sweep."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar, Self
from uuid import UUID

from django.conf import settings

from runs import agents, follow, recovery
from runs.bus import Bus
from runs.checkpoints import Checkpoints
from runs.database import in_thread
from runs.executor import TrackingExecutor
from runs.hub import Hub
from runs.tracking import track_tasks

logger = logging.getLogger(__name__)


class Node:
    """The engine in a process, on one event loop. It follows, reads and sweeps, and executes nothing."""

    current: ClassVar["Node | None"] = None

    def __init__(self, bus: Bus, hub: Hub, checkpoints: Checkpoints) -> None:
        self.bus = bus
        self.hub = hub
        self.checkpoints = checkpoints
        self.leaving = False
        self.broken = asyncio.Event()  # set when the process cannot do its work any more
        self._loop = asyncio.get_running_loop()
        self._heart: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> Self:
        """Open all that the process needs, sweep once, and begin to work."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(TrackingExecutor())
        track_tasks(loop)
        async with AsyncExitStack() as opened:
            bus = await Bus.open()
            opened.push_async_callback(bus.close)
            checkpoints = await Checkpoints.open()
            opened.push_async_callback(checkpoints.close)
            node = cls(bus, Hub.open(bus, follow.snapshots), checkpoints)
            opened.push_async_callback(node.close)
            await in_thread(agents.warm_up)
            await node._begin()
            opened.pop_all()
        return node

    async def leave(self, seconds: float) -> None:
        """Take no more turns and close everything, within ``seconds`` if that is in this process's power."""
        self.leaving = True
        await self.close()

    async def close(self) -> None:
        """Close everything at once."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        await self._end()
        await self.hub.close()
        await self.checkpoints.close()
        await self.bus.close()
        if Node.current is self:
            Node.current = None

    async def forget_session(self, session_id: UUID) -> None:
        """Stop what executes here for a session that is deleted; afterwards nothing here writes for it."""

    async def beat(self) -> None:
        """One heartbeat: one recovery."""
        await recovery.recover(self.checkpoints)

    async def _begin(self) -> None:
        """Beat once, then regularly."""
        Node.current = self
        await self.beat()
        self._heart = asyncio.create_task(self._beat_forever(), name="heartbeat")
        for loop in self._side_loops():
            loop.add_done_callback(self._side_loop_ended)

    async def _end(self) -> None:
        """End what the process does, while it still has what it needs for that."""

    def _side_loops(self) -> "list[asyncio.Task[None]]":
        return [*([self._heart] if self._heart else []), *self.bus.tasks, *self.hub.tasks]

    def _side_loop_ended(self, task: "asyncio.Task[None]") -> None:
        """Without any of its side loops a process only seems to work, so it has to go, loudly."""
        if not task.cancelled():
            logger.critical(
                "The loop %r ended; this process leaves.", task.get_name(), exc_info=task.exception()
            )
            self.broken.set()

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(settings.RUNS_HEARTBEAT)
            try:
                await self.beat()
            except Exception:  # the database may be away; a worker that misses its beats is taken for dead
                logger.exception("The heartbeat failed.")


@asynccontextmanager
async def process_checkpoints() -> AsyncIterator[Checkpoints]:
    """The process's checkpoints; in a command, opened for the occasion."""
    if Node.current is not None:
        yield Node.current.checkpoints
        return
    opened = await Checkpoints.open()
    try:
        yield opened
    finally:
        await opened.close()
