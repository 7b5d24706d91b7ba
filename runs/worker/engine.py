"""The part of the engine in every process that serves: the bus, the hub, the checkpoints, the sweep."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

from django.conf import settings

from runs import agents, this_process
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.foundation.tasks import end
from runs.lifecycle import liveness
from runs.live import follow
from runs.live.bus import Bus
from runs.live.hub import Hub
from runs.memory.checkpoints import Checkpoints
from runs.models import Worker
from runs.recovery import sweep
from runs.stopping.executor import TrackingExecutor
from runs.stopping.tracking import track_tasks

logger = logging.getLogger(__name__)


class Engine:
    """The engine of a process, on one event loop. It follows, reads and sweeps. It executes no runs."""

    id: UUID | None = None  # of the worker that this process is, if it executes runs
    executions: Mapping[UUID, Any] = MappingProxyType({})  # what it executes, by run
    stragglers: Collection[Any] = ()  # executions that were given up on and still work

    def __init__(self, bus: Bus, hub: Hub, checkpoints: Checkpoints) -> None:
        self.bus = bus
        self.hub = hub
        self.checkpoints = checkpoints
        self.leaving = False
        self.broken = asyncio.Event()  # set when the process cannot do its work any more
        self._loop = asyncio.get_running_loop()
        self.watch = liveness.Watch()
        self._regular: list[asyncio.Task[None]] = []  # the loops that do something with each heartbeat

    @classmethod
    async def start(cls) -> Self:
        """Open all that the process needs, sweep once, and start the side loops."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(TrackingExecutor())
        track_tasks(loop)
        async with AsyncExitStack() as opened:
            bus = await Bus.open()
            opened.push_async_callback(bus.close)
            checkpoints = await Checkpoints.open()
            opened.push_async_callback(checkpoints.close)
            engine = cls(bus, Hub.open(bus, follow.snapshots), checkpoints)
            opened.push_async_callback(engine.close)
            await in_thread(agents.warm_up)
            await engine._begin()
            opened.pop_all()
        return engine

    async def leave(self, seconds: float) -> None:
        """Take no more turns and close everything. It tries to be done within ``seconds``."""
        self.leaving = True
        await self.close()

    async def close(self) -> None:
        """Close everything at once."""
        await end(self._regular)
        await self._end()
        if this_process.engine is self:
            this_process.engine = None
        await self.hub.close()
        await self.checkpoints.close()
        await self.bus.close()

    def offer(self, session_id: UUID) -> bool:
        """Have the session's first in line executed soon. Returns whether this process executes runs."""
        return False

    def fence(self, run_id: UUID) -> None:
        """Let no checkpoint of this run be written any more, if this process executes it."""

    async def forget_session(self, session_id: UUID) -> None:
        """Stop what executes for a session that is being deleted. Afterwards nothing here writes for it."""

    async def beat(self) -> None:
        """One heartbeat: see whether the database takes writes, and so the heartbeats of others.

        It does not wait for a sweep. A long sweep, or one that meets a locked row, may take longer than a
        worker may be silent.
        """
        # A write that changes nothing, since no worker has this id.
        await in_thread(Worker.objects.filter(id=UUID(int=0)).update, leaving=True)
        self.watch.beat()

    async def sweep(self) -> None:
        """Bring into order what was left behind."""
        await sweep.recover(self.checkpoints, watch=self.watch)

    async def _begin(self) -> None:
        """Sweep once, then regularly."""
        this_process.engine = self
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
        """Stop the process loudly when one of its side loops has ended: it would only seem to work."""
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
        except DATABASE_UNAVAILABLE as error:  # the next one may succeed
            logger.warning("This %s was not possible: %s", name, error)
        except Exception:  # the next one may succeed, and the loop must not end
            logger.exception("This %s failed.", name)
