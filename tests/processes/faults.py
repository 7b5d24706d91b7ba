"""Everything breaks at moments of chance: processes are killed, frozen, replaced; services come and go."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.processes.deployment import HEARTBEAT, MISSED_BEATS, Deployment, Slot
from tests.processes.load import Figures

_DEAD = HEARTBEAT * MISSED_BEATS  # seconds of silence after which a worker is taken for dead


class Injector:
    """Breaks one thing after another in each part of a deployment, all parts at once.

    The seed decides what is done and after which pause. When it happens within the turns is up to time.
    """

    def __init__(self, deployment: Deployment, seed: int, figures: Figures) -> None:
        self._deployment = deployment
        self._seed = seed
        self._figures = figures
        # When each worker was last taken out, on the wall clock, by process id.
        self.lost: dict[int, list[float]] = {}

    async def inject(self, seconds: float) -> None:
        """Break things for so long, then let everything be there again."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as parts:
            for slot in self._deployment.workers:
                faults = {self._freeze: 5, self._kill: 4, self._leave: 2}
                parts.create_task(self._trouble(slot.name, until, faults, (0.3, 2), slot))
            for slot in self._deployment.webs:
                parts.create_task(
                    self._trouble(slot.name, until, {self._kill: 1, self._leave: 1}, (0.5, 5), slot)
                )
            parts.create_task(self._trouble("redis", until, {self._pause_redis: 1}, (0.3, 2.5)))
            postgresql = {self._restart_postgresql: 1, self._crash_postgresql: 1}
            parts.create_task(self._trouble("postgresql", until, postgresql, (2, 7)))
        await self._deployment.ready()

    async def _trouble(
        self,
        name: str,
        until: float,
        faults: Mapping[Any, int],
        pauses: tuple[float, float],
        *of: Slot,
    ) -> None:
        chance = random.Random(f"{self._seed} {name}")
        while True:
            await asyncio.sleep(chance.uniform(*pauses))
            if time.monotonic() > until:
                return
            fault = chance.choices(list(faults), list(faults.values()))[0]
            began = time.monotonic()
            await fault(chance, *of)
            self._figures.faults[f"{fault.__name__.strip('_')} {name.rstrip('12')}"] += 1
            self._figures.outages.append(time.monotonic() - began)

    async def _kill(self, chance: random.Random, slot: Slot) -> None:
        await slot.ready.wait()
        self._note(slot)
        slot.kill()
        await slot.process.wait()
        await slot.ready.wait()

    async def _leave(self, chance: random.Random, slot: Slot) -> None:
        await slot.ready.wait()
        await slot.leave()
        await slot.ready.wait()

    async def _freeze(self, chance: random.Random, slot: Slot) -> None:
        await slot.ready.wait()
        self._note(slot)
        await slot.freeze(_DEAD + chance.uniform(0.5, 2))

    async def _pause_redis(self, chance: random.Random) -> None:
        redis = self._deployment.redis
        await asyncio.to_thread(redis.stop)
        await asyncio.sleep(chance.uniform(0.2, 2))
        await asyncio.to_thread(redis.start)

    async def _restart_postgresql(self, chance: random.Random) -> None:
        await self._without_postgresql(chance, self._deployment.postgresql.stop)

    async def _crash_postgresql(self, chance: random.Random) -> None:
        await self._without_postgresql(chance, self._deployment.postgresql.crash)

    async def _without_postgresql(self, chance: random.Random, stop: Callable[[], None]) -> None:
        await asyncio.to_thread(stop)
        await asyncio.sleep(chance.uniform(0, 1))
        await asyncio.to_thread(self._deployment.postgresql.start)

    def _note(self, slot: Slot) -> None:
        self.lost.setdefault(slot.pid, []).append(time.time())
