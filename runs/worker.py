"""The process that executes runs: registry of executions, heartbeat, sweep, drain."""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import ClassVar
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models.functions import Now

from runs import agents, dispatch, follow, lifecycle, liveness, log_context, recovery, titles
from runs.bus import Bus, Message, worker_group
from runs.checkpoints import Checkpoints
from runs.database import in_thread
from runs.events import EventWriter
from runs.execution import Execution, StopReason
from runs.executor import TrackingExecutor
from runs.hub import Hub
from runs.models import Run, Worker
from runs.states import RunStatus
from runs.tracking import track_tasks

logger = logging.getLogger(__name__)

VERSION = "1.0.0"

# Of the time to leave, this part is for turns that may still end by themselves.
_DRAIN_SHARE = 0.5
# A checkpoint on its way to the disk is waited for this long.
_SEAL_SECONDS = 10


class Supervisor:
    """All of the engine that lives in this process, on one event loop."""

    current: ClassVar["Supervisor | None"] = None

    def __init__(self, bus: Bus, hub: Hub, checkpoints: Checkpoints) -> None:
        self.id = uuid4()
        self.bus = bus
        self.hub = hub
        self.checkpoints = checkpoints
        self.writer = EventWriter()
        self.executions: dict[UUID, Execution] = {}
        self.stragglers: set[Execution] = set()
        self.leaving = False
        self.broken = asyncio.Event()  # set when the process cannot do its work any more
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()
        self._claims: set[asyncio.Task[None]] = set()
        self._titles: set[asyncio.Task[None]] = set()
        self._wanted: dict[UUID, None] = {}  # sessions offered while there was no room, in order
        self._heart: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> "Supervisor":
        """Open all that the process needs, sweep once, and begin to execute."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(TrackingExecutor())
        track_tasks(loop)
        async with AsyncExitStack() as opened:
            bus = await Bus.open()
            opened.push_async_callback(bus.close)
            checkpoints = await Checkpoints.open()
            opened.push_async_callback(checkpoints.close)
            supervisor = cls(bus, Hub.open(bus, follow.snapshot), checkpoints)
            opened.push_async_callback(supervisor.close)
            await supervisor._begin()
            opened.pop_all()
        return supervisor

    async def _begin(self) -> None:
        log_context.bind(worker=self.id)
        await self.bus.listen(worker_group(self.id), self._hear)
        await in_thread(agents.warm_up)
        await in_thread(self._register)
        dispatch.attach(self)
        Supervisor.current = self
        self.writer.start()
        await self.beat()
        self._heart = asyncio.create_task(self._beat_forever(), name="heartbeat")
        for loop in (self._heart, *self.bus.tasks, *self.hub.tasks, *self.writer.tasks):
            loop.add_done_callback(self._side_loop_ended)

    def _side_loop_ended(self, task: "asyncio.Task[None]") -> None:
        """Without any of its side loops a process only seems to work, so it has to go, loudly."""
        if not task.cancelled():
            logger.critical(
                "The loop %r ended; this process leaves.", task.get_name(), exc_info=task.exception()
            )
            self.broken.set()

    async def leave(self, seconds: float) -> None:
        """Take no more turns, let those in hand come to a step, mark the rest interrupted, close everything.

        Done within ``seconds`` as far as it is in this process's power; a caller that must be gone by
        then ends the process.
        """
        deadline = self._loop.time() + seconds
        self.leaving = True
        dispatch.attach(None)
        await asyncio.gather(*self._claims, return_exceptions=True)
        for execution in self.executions.values():
            execution.drain()
        await self._ended(seconds * _DRAIN_SHARE)
        for execution in list(self.executions.values()):
            execution.stop(StopReason.SHUTDOWN)
        await self._ended(deadline - self._loop.time())
        await self.close()

    async def close(self) -> None:
        """Close everything at once; what still executes is left to the next sweep."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        dispatch.attach(None)
        unfinished = self._tasks | self._titles
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await self.writer.close()
        await self.hub.close()
        await self.checkpoints.close()
        await in_thread(Worker.objects.filter(id=self.id).delete)
        await self.bus.close()
        if Supervisor.current is self:
            Supervisor.current = None

    def offer(self, session_id: UUID) -> None:
        """Claim and execute the session's first in line, when there is room. From any thread."""
        self._loop.call_soon_threadsafe(self._want, session_id)

    def seal(self, run_id: UUID) -> None:
        """Let no checkpoint of this run be written any more. From any thread; waits unless on the loop."""
        execution = self.executions.get(run_id)
        if execution is None:
            return
        if threading.get_ident() == self._thread:
            execution.stop(StopReason.FENCED)
        else:
            asyncio.run_coroutine_threadsafe(execution.seal(), self._loop).result(_SEAL_SECONDS)

    async def forget_session(self, session_id: UUID) -> None:
        """Stop what executes for a session that is being deleted; afterwards nothing here writes for it."""
        mine = self._of_session(session_id)
        for execution in mine:
            execution.stop(StopReason.FENCED)
        await asyncio.gather(*(execution.ended.wait() for execution in mine))

    async def beat(self) -> None:
        """One heartbeat: sign of life, a look at the marks on one's own runs, one recovery."""
        if not await in_thread(self._sign_of_life):
            # We were taken for dead. Our runs are somebody else's by now; begin anew under the same name.
            await in_thread(self._register)
        for run_id, reason in await in_thread(self._marks):
            if execution := self.executions.get(run_id):
                execution.stop(reason)
        await recovery.recover(self.checkpoints, self.id)

    def _want(self, session_id: UUID) -> None:
        if self.leaving:
            return
        self._wanted[session_id] = None
        self._claim_wanted()

    def _claim_wanted(self) -> None:
        while self._wanted and len(self.executions) + len(self._claims) < settings.RUNS_CONCURRENCY:
            session_id = next(iter(self._wanted))
            del self._wanted[session_id]
            task = asyncio.create_task(self._claim(session_id), name=f"claim {session_id}")
            self._claims.add(task)
            task.add_done_callback(self._claimed)

    def _claimed(self, task: asyncio.Task[None]) -> None:
        self._claims.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A claim failed; the sweep offers the session again.", exc_info=error)
        self._claim_wanted()

    async def _claim(self, session_id: UUID) -> None:
        run = await in_thread(lifecycle.claim, session_id, self.id)
        if run is None:
            return
        # A run that was ended without its execution: this one may not have heard of it yet.
        for earlier in self._of_session(session_id):
            await earlier.fence()
        execution = Execution(run, self.writer, self.checkpoints)
        self.executions[run.id] = execution
        task = asyncio.create_task(self._execute(execution), name=f"run {run.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, execution: Execution) -> None:
        log_context.bind(worker=self.id, session=execution.run.session_id, run=execution.run.id)
        try:
            await execution.run_to_its_end()
            if not self.leaving:
                task = asyncio.create_task(titles.improve(execution.run), name=f"title {execution.run.id}")
                self._titles.add(task)
                task.add_done_callback(self._titles.discard)
        finally:
            del self.executions[execution.run.id]
            if execution.straggles(lambda: self.stragglers.discard(execution)):
                self.stragglers.add(execution)
            self._claim_wanted()

    def _of_session(self, session_id: UUID) -> list[Execution]:
        return [one for one in self.executions.values() if one.run.session_id == session_id]

    async def _ended(self, seconds: float) -> None:
        tasks = list(self._tasks)
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def _hear(self, message: Message) -> None:
        if execution := self.executions.get(UUID(message["run"])):
            execution.stop(StopReason.FENCED if message["kind"] == "fenced" else StopReason.CANCEL)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(settings.RUNS_HEARTBEAT)
            try:
                await self.beat()
            except Exception:  # the database may be away; a worker that misses its beats is taken for dead
                logger.exception("The heartbeat failed.")

    def _register(self) -> None:
        host, boot = liveness.this_host()
        pid = os.getpid()
        Worker.objects.update_or_create(
            id=self.id,
            defaults={
                "host": host,
                "boot": boot,
                "pid": pid,
                "pid_started": liveness.process_started(pid),
                "version": VERSION,
                "heartbeat_at": Now(),
            },
        )

    def _sign_of_life(self) -> bool:
        changed = Worker.objects.filter(id=self.id).update(
            heartbeat_at=Now(),
            active_runs=len(self.executions),
            stragglers=len(self.stragglers),
            leaving=self.leaving,
        )
        return changed == 1

    def _marks(self) -> list[tuple[UUID, StopReason]]:
        """What happened to the runs in hand without our having been told."""
        mine = list(self.executions)
        found = {
            row[0]: row[1:]
            for row in Run.objects.filter(id__in=mine).values_list(
                "id", "status", "claim", "cancel_requested_at"
            )
        }
        marks = []
        for run_id in mine:
            execution = self.executions.get(run_id)
            status, claim, cancelled = found.get(run_id, ("", 0, None))
            if execution is None:
                continue
            if status != RunStatus.RUNNING or claim != execution.run.claim:
                marks.append((run_id, StopReason.FENCED))
            elif cancelled is not None:
                marks.append((run_id, StopReason.CANCEL))
        return marks


@asynccontextmanager
async def process_checkpoints() -> AsyncIterator[Checkpoints]:
    """The process's checkpoints; in a command, opened for the occasion."""
    if Supervisor.current is not None:
        yield Supervisor.current.checkpoints
        return
    opened = await Checkpoints.open()
    try:
        yield opened
    finally:
        await opened.close()
