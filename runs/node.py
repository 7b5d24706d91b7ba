"""What of the engine lives in every process that serves: the bus, the feeds, the checkpoints, the sweep."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar, Self
from uuid import UUID

from django.conf import settings

from runs import agents, follow, liveness, recovery
from runs.bus import Bus
from runs.checkpoints import Checkpoints
from runs.database import AWAY, in_thread
from runs.executor import TrackingExecutor
from runs.hub import Hub
from runs.models import Worker
from runs.tasks import end
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
        self._watch = liveness.own_watch = liveness.Watch()
        self._regular: list[asyncio.Task[None]] = []  # the loops that do something with each heartbeat

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
        await end(self._regular)
        await self._end()
        await self.hub.close()
        await self.checkpoints.close()
        await self.bus.close()
        if Node.current is self:
            Node.current = None
        if liveness.own_watch is self._watch:
            liveness.own_watch = None

    async def forget_session(self, session_id: UUID) -> None:
        """Stop what executes here for a session that is deleted; afterwards nothing here writes for it."""

    async def beat(self) -> None:
        """One heartbeat: see that the database takes writes, and so those of the others' heartbeats.

        It waits for no sweep. One that has much to do, or meets a row that somebody holds, may take longer
        than a worker may be silent.
        """
        # One that changes nothing, since none has this id.
        await in_thread(Worker.objects.filter(id=UUID(int=0)).update, leaving=True)
        self._watch.beat()

    async def sweep(self) -> None:
        """Bring into order what was left behind."""
        await recovery.recover(self.checkpoints, watch=self._watch)

    async def _begin(self) -> None:
        """Sweep once, then regularly."""
        Node.current = self
        self._do_regularly(self.beat, "heartbeat")
        await self.sweep()
        self._do_regularly(self.sweep, "sweep")
        for loop in self._side_loops():
            loop.add_done_callback(self._side_loop_ended)

    async def _end(self) -> None:
        """End what the process does, while it still has what it needs for that."""

    def _side_loops(self) -> "list[asyncio.Task[None]]":
        return [*self._regular, *self.bus.tasks, *self.hub.tasks]

    def _side_loop_ended(self, task: "asyncio.Task[None]") -> None:
        """Without any of its side loops a process only seems to work, so it has to go, loudly."""
        if not task.cancelled():
            logger.critical(
                "The loop %r ended; this process leaves.", task.get_name(), exc_info=task.exception()
            )
            self.broken.set()

    def _do_regularly(self, step: Callable[[], Awaitable[None]], name: str) -> None:
        self._regular.append(asyncio.create_task(_do_forever(step, name), name=name))


async def _do_forever(step: Callable[[], Awaitable[None]], name: str) -> None:
    while True:
        await asyncio.sleep(settings.RUNS_HEARTBEAT)
        try:
            await step()
        except AWAY as error:  # the next one tells; a worker that misses its beats is taken for dead
            logger.warning("This %s was not possible: %s", name, error)
        except Exception:  # the next one may do better, and without any nothing would be found again
            logger.exception("This %s failed.", name)


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
