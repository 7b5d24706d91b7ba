"""The process that executes runs: registry of executions, heartbeat, drain."""

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db.models.functions import Now

from runs import __version__
from runs.foundation import log_context
from runs.foundation.database import in_thread
from runs.foundation.host import this_host
from runs.foundation.tasks import end
from runs.lifecycle import dispatch, jobs, liveness, queue
from runs.live.bus import Bus, Message, worker_group
from runs.live.hub import Hub
from runs.log.writer import EventWriter
from runs.memory.checkpoints import Checkpoints
from runs.models import Run, Worker
from runs.recovery import sweep
from runs.states import RunStatus
from runs.worker import titles
from runs.worker.ending import StopReason
from runs.worker.engine import Engine
from runs.worker.execution import Execution

logger = logging.getLogger(__name__)

# The part of the time to leave in which turns may still end by themselves.
_DRAIN_SHARE = 0.5
# Seconds to wait for a checkpoint on its way to the disk.
_FENCE_SECONDS = 10


class Supervisor(Engine):
    """The engine in a process that executes runs."""

    def __init__(self, bus: Bus, hub: Hub, checkpoints: Checkpoints) -> None:
        super().__init__(bus, hub, checkpoints)
        self.id: UUID = uuid4()
        self._executes = True
        self.writer = EventWriter()
        self.executions: dict[UUID, Execution] = {}
        self.stragglers: set[Execution] = set()
        self._thread = threading.get_ident()
        self._tasks: set[asyncio.Task[None]] = set()
        # The claims in progress: by task, the session and who waits for its claim.
        self._claims: dict[asyncio.Task[None], tuple[UUID, asyncio.Future[None]]] = {}
        # Stops that came in between a claim and its execution, by run.
        self._early_stops: dict[UUID, list[StopReason]] = {}
        self._strays: set[tuple[UUID, int]] = set()  # by the last sweep: run and claim
        self._after: set[asyncio.Task[None]] = set()  # what is still done for runs that have ended
        # Sessions offered while there was no room, in order, each with the claim that is waited for.
        self._wanted: dict[UUID, asyncio.Future[None]] = {}
        self._queue: asyncio.Task[None] | None = None

    async def _begin(self) -> None:
        log_context.bind(worker=self.id)
        await self.bus.listen(worker_group(self.id), self._hear)
        await in_thread(self._register)
        self.writer.start()
        if dispatch.is_shared():
            self._queue = asyncio.create_task(jobs.take_forever(self.take, liveness.patience()), name="queue")
        await super()._begin()

    def _side_loops(self) -> "list[asyncio.Task[None]]":
        return [*super()._side_loops(), *self.writer.tasks, *([self._queue] if self._queue else [])]

    async def leave(self, seconds: float) -> None:
        """Take no more turns, let those in hand come to a step, mark the rest interrupted, close everything.

        It tries to be done within ``seconds``. A caller that must be gone by then has to end the process.
        Turns that may go on are handed over if another worker is there.
        """
        deadline = self._loop.time() + seconds
        self.leaving = True  # nothing is claimed any more; what executes can still be fenced
        await self._take_no_jobs()
        for claimed in self._wanted.values():
            claimed.cancel()
        self._wanted.clear()
        # Others see at once that there is nobody here to hand anything over to.
        await asyncio.gather(in_thread(self._sign_of_life), *self._claims, return_exceptions=True)
        for execution in self.executions.values():
            execution.drain()
        await self._ended(seconds * _DRAIN_SHARE)
        for execution in list(self.executions.values()):
            execution.stop(StopReason.SHUTDOWN)
        await self._ended(deadline - self._loop.time())
        await self.close()

    async def _end(self) -> None:
        """What still executes is left to the next sweep."""
        self._executes = False
        await self._take_no_jobs()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await end(self._after)
        await self.writer.close()
        await in_thread(sweep.remove_worker, Worker.objects.filter(id=self.id))

    async def _take_no_jobs(self) -> None:
        if self._queue is not None:
            await end([self._queue])

    def offer(self, session_id: UUID) -> bool:
        """Claim and execute the session's first in line, when there is room. From any thread."""
        if self._executes:
            self._loop.call_soon_threadsafe(self._want, session_id)
        return self._executes

    async def take(self, session_id: UUID) -> None:
        """Claim and execute the session's first in line, when there is room. Returns when it was claimed.

        To be awaited on the loop. If the caller is cancelled, the claim goes on.
        """
        await asyncio.wait({self._want(session_id)})

    def fence(self, run_id: UUID) -> None:
        """Let no checkpoint of this run be written any more. From any thread; waits unless on the loop."""
        execution = self.executions.get(run_id)
        if execution is None or not self._executes:
            return
        if threading.get_ident() == self._thread:
            execution.stop(StopReason.FENCED)
        else:
            asyncio.run_coroutine_threadsafe(execution.fence(), self._loop).result(_FENCE_SECONDS)

    async def forget_session(self, session_id: UUID) -> None:
        """Stop what executes for a session that is being deleted; afterwards nothing here writes for it."""
        mine = self._of_session(session_id)
        for execution in mine:
            execution.stop(StopReason.FENCED)
        await asyncio.gather(*(execution.ended.wait() for execution in mine))

    async def beat(self) -> None:
        """One heartbeat: a sign of life, and a look at the marks on one's own runs."""
        if not await in_thread(self._sign_of_life):
            # We were taken for dead, and our runs were interrupted. Begin anew with the same id.
            await in_thread(self._register)
        self.watch.beat()
        for execution, reason in await in_thread(self._marks):
            execution.stop(reason)

    async def sweep(self) -> None:
        await sweep.recover(self.checkpoints, self.id, self.watch)
        await self._end_strays()

    async def _end_strays(self) -> None:
        """Interrupt the runs that are ours in the database and that nothing here executes.

        That happens when the database went away between the commit of a claim and its reply, or when an
        ending could not be written. It is done at the second sweep that finds a run so, since an ending may
        have come in between.
        """
        ours = await in_thread(self._running)
        claiming = {session_id for session_id, _ in self._claims.values()}
        strays = {
            (run_id, claim)
            for run_id, session_id, claim in ours
            if run_id not in self.executions and session_id not in claiming
        }
        lost = [run_id for run_id, _ in strays & self._strays]
        if lost:
            logger.warning("Nothing here executes these runs of ours, so they are interrupted: %s", lost)
            await in_thread(sweep.interrupt_lost, lost, self.id)
        self._strays = strays

    def _want(self, session_id: UUID) -> asyncio.Future[None]:
        claimed = self._wanted.get(session_id) or self._loop.create_future()
        if self.leaving:
            claimed.cancel()
        else:
            self._wanted[session_id] = claimed
            self._claim_wanted()
        return claimed

    def _claim_wanted(self) -> None:
        while self._wanted and len(self.executions) + len(self._claims) < settings.RUNS_CONCURRENCY:
            session_id = next(iter(self._wanted))
            claimed = self._wanted.pop(session_id)
            task = asyncio.create_task(self._claim(session_id), name=f"claim {session_id}")
            self._claims[task] = session_id, claimed
            task.add_done_callback(self._claimed)

    def _claimed(self, task: asyncio.Task[None]) -> None:
        _, claimed = self._claims.pop(task)
        if not self._claims:
            self._early_stops.clear()
        if not claimed.done():
            claimed.set_result(None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("A claim failed; the sweep offers the session again.", exc_info=error)
        self._claim_wanted()

    async def _claim(self, session_id: UUID) -> None:
        run = await in_thread(queue.claim, session_id, self.id)
        if run is None:
            return
        # An earlier run may have been ended without its execution, which may not have heard of it yet.
        for earlier in self._of_session(session_id):
            await earlier.fence()
        execution = Execution(
            run, self.writer, self.checkpoints, self._afterwards, on_stragglers_ended=self.stragglers.discard
        )
        self.executions[run.id] = execution
        for reason in self._early_stops.pop(run.id, ()):
            execution.stop(reason)
        task = asyncio.create_task(self._execute(execution), name=f"run {run.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, execution: Execution) -> None:
        log_context.bind(worker=self.id, session=execution.run.session_id, run=execution.run.id)
        try:
            await execution.run_to_its_end()
            if self.leaving:
                await self._hand_over(execution.run.id)
            else:
                self._afterwards(titles.improve(execution.run), f"title {execution.run.id}")
        finally:
            if self.executions.get(execution.run.id) is execution:  # not the one that goes on after an answer
                del self.executions[execution.run.id]
                self._early_stops.pop(execution.run.id, None)
            if execution.token.activity.stragglers():
                self.stragglers.add(execution)
            self._claim_wanted()

    def _afterwards(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._after.add(task)
        task.add_done_callback(self._after.discard)

    async def _hand_over(self, run_id: UUID) -> None:
        try:
            await sweep.hand_over(run_id, self.checkpoints, self.id)
        except Exception:  # a graph's own reducers may raise anything, and the process leaves all the same
            logger.exception("Run %s is left to its user.", run_id)

    def _of_session(self, session_id: UUID) -> list[Execution]:
        return [one for one in self.executions.values() if one.run.session_id == session_id]

    async def _ended(self, seconds: float) -> None:
        tasks = list(self._tasks)
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def _hear(self, message: Message) -> None:
        run_id = UUID(message["run"])
        reason = StopReason.FENCED if message["kind"] == "fenced" else StopReason.CANCEL
        if execution := self.executions.get(run_id):
            execution.stop(reason)
        if self._claims:  # it may be meant for the next claim of the same run
            self._early_stops.setdefault(run_id, []).append(reason)

    def _register(self) -> None:
        host, boot = this_host()
        pid = os.getpid()
        Worker.objects.update_or_create(
            id=self.id,
            defaults={
                "host": host,
                "boot": boot,
                "pid": pid,
                "pid_started": liveness.process_started(pid),
                "version": __version__,
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

    def _running(self) -> list[tuple[UUID, UUID, int]]:
        """The runs that this worker executes as far as the database knows: id, session, claim."""
        ours = Run.objects.filter(worker=self.id, status=RunStatus.RUNNING)
        return list(ours.values_list("id", "session_id", "claim"))

    def _marks(self) -> list[tuple[Execution, StopReason]]:
        """The executions whose run was cancelled or taken away. The notices of that may have been lost.

        They are those of before the look: another claim of the same run may come in between.
        """
        mine = dict(self.executions)
        found = {
            row[0]: row[1:]
            for row in Run.objects.filter(id__in=mine).values_list(
                "id", "status", "claim", "cancel_requested_at"
            )
        }
        marks = []
        for run_id, execution in mine.items():
            status, claim, cancelled = found.get(run_id, ("", 0, None))
            if status != RunStatus.RUNNING or claim != execution.run.claim:
                marks.append((execution, StopReason.FENCED))
            elif cancelled is not None:
                marks.append((execution, StopReason.CANCEL))
        return marks
