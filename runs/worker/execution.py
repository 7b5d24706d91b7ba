"""The live side of a run: drives one graph on one run, and stops it by grades.

The graph runs in a task of its own whose context carries the run's cancel token; so every task, thread
and process it starts is known. This task outlives it and alone decides the ending.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from django.conf import settings
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained, NodeCancelledError
from langgraph.runtime import RunControl

from runs import agents
from runs.errors import AgentMismatch, Fenced
from runs.foundation.database import AWAY, in_thread
from runs.lifecycle import endings, questions
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.log import tool_calls
from runs.log.writer import EventWriter
from runs.memory.checkpoints import Checkpoints, FencedSaver
from runs.models import Run
from runs.states import Effect, ErrorCode, InterruptReason, RunStatus
from runs.stopping import cancel_token, tracking
from runs.stopping.cancel_token import CancelToken
from runs.stopping.late_results import LateResults
from runs.translation.failures import INTERNAL, explain
from runs.translation.translator import Translator
from runs.worker import graph_input

logger = logging.getLogger(__name__)

T = TypeVar("T")

STREAM_MODES: Any = ["messages", "updates", "tools", "custom"]  # its type lacks "tools"

# How often the limits of a running turn are looked at, in seconds.
_WATCH = 0.5


class StopReason(StrEnum):
    """Why a graph was stopped from outside; the first reason decides the ending."""

    CANCEL = "cancel"  # an accepted cancel
    FENCED = "fenced"  # the run is not ours any more
    SHUTDOWN = "shutdown"  # the process leaves
    DEADLINE = "deadline"  # the run took longer than RUNS_RUN_TIMEOUT
    SILENCE = "silence"  # the provider said nothing for RUNS_IDLE_TIMEOUT
    TOOL_TIME = "tool_time"  # a tool took longer than RUNS_TOOL_TIMEOUT
    LOG = "log"  # what the run said cannot be stored


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends, before it is written."""

    status: RunStatus
    error: Failure | None = None
    reason: InterruptReason | None = None
    questions: list[dict[str, Any]] = field(default_factory=list)


class Execution:
    """One claim of one run, from the claim to the ending.

    ``afterwards`` takes what is left to do when it has ended, with a name for it.
    """

    def __init__(
        self,
        run: Run,
        writer: EventWriter,
        checkpoints: Checkpoints,
        afterwards: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self.run = run
        self.token = CancelToken()
        self._writer = writer
        self._checkpoints = checkpoints
        self._log = writer.open(run)
        self._control = RunControl()
        self._results = LateResults(self._later(self._result_came))
        self._stop: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._gave_up = False
        self._slow_tool_name = ""
        self._fenced = False
        self._on_stragglers_ended: Callable[[], None] = lambda: None
        self._afterwards = afterwards
        self._saver: FencedSaver = checkpoints.fenced(run.id, run.claim)

    # Asked from outside

    def stop(self, reason: StopReason) -> None:
        """Stop the graph, soon. The first reason decides; but a run that is not ours is not ours."""
        self._fenced |= reason is StopReason.FENCED
        if not self._stop.done():
            self._stop.set_result(reason)

    async def fence(self) -> None:
        """The run was ended without this execution: when this returns, it writes no checkpoint any more."""
        self.stop(StopReason.FENCED)
        await self._saver.fence()

    async def seal(self) -> None:
        """Let no checkpoint be written any more, and wait for those on their way."""
        self.stop(StopReason.FENCED)
        await self._saver.fence()

    def drain(self) -> None:
        """Let the graph come to its next step and end there; a turn in its last step still completes."""
        self._control.request_drain()

    def straggles(self, ended: Callable[[], None]) -> bool:
        """Whether what was given up on still works; then ``ended`` is called when it does not any more."""
        self._on_stragglers_ended = ended
        return bool(self.token.work.stragglers())

    # From claim to ending

    async def run_to_its_end(self) -> None:
        """Execute the run and write its ending. Never raises but for a programming error."""
        try:
            await self._conclude(await self._drive())
        except Fenced:
            logger.info("Run %s is not ours any more; what it still did was dropped.", self.run.id)
            await self._stop_everything()  # it may have been a checkpoint that found out
        except Exception:
            # Nobody above could do better: the run has to end, with what is known of it in the log.
            logger.exception("The execution of run %s broke.", self.run.id)
            await self._stop_everything()
            result = await self._finish(Ending(RunStatus.FAILED, INTERNAL), repaired=False)
            if result is Outcome.CANCEL_FIRST:
                await self._finish(Ending(RunStatus.CANCELLED), repaired=False)
        finally:
            await self._saver.fence()
            self._writer.release(self._log)
            self.ended.set()

    async def _drive(self) -> Ending:
        """Run the graph to its end or stop it; then nothing of it works any more, or it was given up on."""
        turn = await _stubbornly(lambda: in_thread(graph_input.load, self.run))
        if turn.run.cancel_requested_at is not None:
            self.stop(StopReason.CANCEL)
        self._translator = Translator(
            self._log,
            run_id=str(self.run.id),
            log_updates="updates" in self.run.stream_modes,
            log_custom="custom" in self.run.stream_modes,
            known=turn.known,
            is_cancelled=lambda: self.token.cancelled,
        )
        try:
            name = self.run.session.agent
            agent = agents.built(name)
            if agent is None:
                agent = await in_thread(agents.load, name)
            self._graph = agent.graph_on(self._saver)
            given, left_behind = await _stubbornly(lambda: graph_input.begin(self._graph, turn))
            for namespace, messages in left_behind:
                self._translator.recover(namespace, messages)
        except AgentMismatch as error:
            return Ending(RunStatus.FAILED, Failure(ErrorCode.INTERNAL, error.message))
        if self._stop.done():
            return self._stopped(self._stop.result())

        tracking.track_generators()
        context = contextvars.copy_context()
        context.run(cancel_token.current.set, self.token)
        graph_task = asyncio.create_task(self._stream(given), name=f"graph {self.run.id}", context=context)
        watch = asyncio.create_task(self._watch(), name=f"limits {self.run.id}")
        try:
            first: set[asyncio.Future[Any]] = {graph_task, watch, self._stop}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
        if graph_task.done():
            ending = self._ended(graph_task)
            if self.token.work.alive():  # what its tools left behind ends with the turn
                await self._stop_everything(graph_task)
            return ending
        ending = self._stopped(self._stop.result())
        await self._stop_everything(graph_task)
        return ending

    async def _stream(self, given: Any) -> None:
        config: RunnableConfig = {
            "configurable": {"thread_id": str(self.run.session_id)},
            "recursion_limit": settings.RUNS_STEP_LIMIT,
            "callbacks": [*self._translator.callbacks, self._results],
        }
        chunks: Any = self._graph.astream(
            given,
            config,
            stream_mode=STREAM_MODES,
            subgraphs=True,
            durability="sync",
            control=self._control,
        )
        feed = self._translator.feed
        async with aclosing(chunks):
            async for namespace, mode, payload in chunks:
                feed(namespace, mode, payload)
                if not self._log.has_room:
                    await self._log.room()

    async def _watch(self) -> None:
        """Stop the graph when it passes one of its limits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.RUNS_RUN_TIMEOUT
        while not self._stop.done():
            await asyncio.sleep(_WATCH)
            if self._log.failure is not None:
                fenced = isinstance(self._log.failure, Fenced)
                self.stop(StopReason.FENCED if fenced else StopReason.LOG)
            elif loop.time() > deadline:
                self.stop(StopReason.DEADLINE)
            elif self._silence() > settings.RUNS_IDLE_TIMEOUT:
                self.stop(StopReason.SILENCE)
            elif (slow := self._slow_tool()) is not None:
                self._slow_tool_name = slow
                self.stop(StopReason.TOOL_TIME)

    def _silence(self) -> float:
        """For how many seconds the quietest LLM call in progress has given nothing."""
        if not self._translator.llm_calls_open:
            return 0
        return time.monotonic() - self._translator.last_activity

    def _slow_tool(self) -> str | None:
        """The name of a tool that has been at work for too long."""
        limit = time.monotonic() - settings.RUNS_TOOL_TIMEOUT
        slow = [call_id for call_id, begun in self._translator.tools_open.items() if begun < limit]
        return self._translator.tool_name(slow[0]) if slow else None

    # Stopping

    async def _stop_everything(self, graph_task: "asyncio.Task[None] | None" = None) -> None:
        """Token and tasks first, then the grace time, then give up."""
        work = self.token.work
        self.token.cancel()
        work.terminate_processes()
        if graph_task is not None:
            graph_task.cancel()
        grace = settings.RUNS_CANCEL_GRACE
        if graph_task is not None:
            await asyncio.wait({graph_task}, timeout=grace / 2)
        # Tasks that tools spawned, and those that swallowed their first CancelledError.
        work.cancel_tasks()
        if not await work.ended(grace / 2):
            work.kill_processes()
            if not await work.ended(_AFTER_KILL):
                self._gave_up = True
                work.give_up(self._later(self._stragglers_ended), self._later(self._result_came))
        await work.close_generators(_AFTER_KILL)

    def _later(self, callback: Callable[..., None]) -> Callable[..., None]:
        """``callback`` on the loop, called from whatever thread a straggler ends in.

        In our context instead of the straggler's: what it begins is the engine's work, not the run's.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def call(*args: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is leaving
                loop.call_soon_threadsafe(callback, *args, context=context)

        return call

    def _stragglers_ended(self) -> None:
        self._on_stragglers_ended()

    def _result_came(self, call_id: str) -> None:
        """Of what was given up on it is known now that its work was done. Nothing else changes."""
        if not self._gave_up:
            return
        self._afterwards(self._note_effect(call_id), f"effect of {call_id}")

    async def _note_effect(self, call_id: str) -> None:
        await self.ended.wait()  # the ending says "unknown" first
        await _stubbornly(lambda: in_thread(tool_calls.straggler_ended, self.run.id, call_id, Effect.DONE))

    # Endings

    def _ended(self, graph_task: "asyncio.Task[None]") -> Ending:
        """The ending of a graph that came to an end by itself."""
        if graph_task.cancelled():
            return Ending(RunStatus.FAILED, explain(NodeCancelledError("graph"), self._translator.errors))
        error = graph_task.exception()
        if error is None:
            if self._translator.questions:
                return Ending(RunStatus.WAITING, questions=self._translator.questions)
            if self._translator.ends_broken and self._translator.unanswered:
                said = "The model asked for a tool in a form that cannot be read, and that was its answer."
                return Ending(RunStatus.FAILED, Failure(ErrorCode.TOOL, said))
            return Ending(RunStatus.COMPLETED)
        if isinstance(error, GraphDrained):
            return Ending(RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN)
        if isinstance(error, Fenced):
            raise error
        logger.info("Run %s failed.", self.run.id, exc_info=error)
        return Ending(RunStatus.FAILED, explain(error, self._translator.errors))

    def _stopped(self, reason: StopReason) -> Ending:
        """The ending of a graph that is being stopped."""
        failed = RunStatus.FAILED
        match reason:
            case StopReason.CANCEL:
                return Ending(RunStatus.CANCELLED)
            case StopReason.SHUTDOWN:
                return Ending(RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN)
            case StopReason.FENCED:
                return Ending(RunStatus.INTERRUPTED)  # never written: the run is not ours
            case StopReason.LOG:
                return Ending(failed, INTERNAL)
            case StopReason.DEADLINE:
                limit = settings.RUNS_RUN_TIMEOUT
                return Ending(
                    failed, Failure(ErrorCode.TIMEOUT, f"The turn took longer than {limit:g} seconds.")
                )
            case StopReason.SILENCE:
                limit = settings.RUNS_IDLE_TIMEOUT
                said = f"The model's provider said nothing for {limit:g} seconds."
                return Ending(failed, Failure(ErrorCode.PROVIDER, said))
            case StopReason.TOOL_TIME:
                limit = settings.RUNS_TOOL_TIMEOUT
                said = f"The tool {self._slow_tool_name} took longer than {limit:g} seconds."
                return Ending(failed, Failure(ErrorCode.TIMEOUT, said))

    async def _conclude(self, ending: Ending) -> None:
        """Flush, repair, and write the ending; an accepted cancel that came first turns it into cancelled."""
        await self._saver.fence()
        if self._fenced:
            raise Fenced
        result = await self._write(ending)
        if result is Outcome.CANCEL_FIRST:
            result = await self._write(Ending(RunStatus.CANCELLED))
        if result is Outcome.FENCED:
            raise Fenced

    async def _write(self, ending: Ending) -> Outcome:
        # A graph that ends on a tool call, to hand something over, has completed; its history cannot be sent.
        unanswered = ending.status is RunStatus.COMPLETED and self._translator.unanswered
        if ending.status is not RunStatus.INTERRUPTED:  # what was interrupted may be gone on with
            self._translator.close(ending.status)
        else:
            self._translator.leave_open()
        await self._log.flush()
        if ending.status is RunStatus.WAITING:
            return await _stubbornly(
                lambda: in_thread(questions.wait, self.run.id, self.run.claim, ending.questions)
            )
        repaired = ending.status is RunStatus.COMPLETED
        if unanswered or ending.status in (RunStatus.CANCELLED, RunStatus.FAILED):
            repaired = await self._repair()
        return await self._finish(ending, repaired=repaired)

    async def _finish(self, ending: Ending, *, repaired: bool) -> Outcome:
        return await _stubbornly(
            lambda: in_thread(
                endings.finish,
                self.run.id,
                self.run.claim,
                ending.status,
                error=ending.error,
                reason=ending.reason,
                repaired=repaired,
                escalated=self._gave_up,
            )
        )

    async def _repair(self) -> bool:
        """Bring the history into a sendable form; if that fails, the next turn's claim does it."""
        if self._fenced:
            raise Fenced
        self._saver = saver = self._checkpoints.fenced(self.run.id, self.run.claim)
        try:
            agent = agents.load(self.run.session.agent)
            async with asyncio.timeout(settings.RUNS_CANCEL_TIMEOUT / 2):
                await graph_input.repair_own(agent.graph_on(saver), self.run)
            return True
        except Fenced:
            raise
        except Exception:  # a graph's own reducers may raise anything, and the run has to end all the same
            logger.exception("The history of run %s is left to the next turn to repair.", self.run.id)
            return False
        finally:
            await saver.fence()


# What a process group needs to vanish after SIGKILL, and a stream to close, in seconds.
_AFTER_KILL = 0.5


async def _stubbornly(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``ask`` while the database is away: a turn has to begin and to end."""
    pause = 0.1
    while True:
        try:
            return await ask()
        except AWAY as error:
            logger.warning("The database does not answer, trying again: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
