"""The live side of a run: drives one graph on one run, and decides how the run ends.

The graph runs in a task of its own whose context carries the run's cancel token. So every task, thread and
process that it starts is known. The execution's task outlives the graph's and alone decides the ending.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl

from runs import agents
from runs.errors import AgentMismatch, Fenced
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.lifecycle import endings, questions
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.log import tool_calls
from runs.log.writer import EventWriter
from runs.memory.checkpoints import Checkpoints
from runs.memory.checkpoints.saver import FencedSaver
from runs.models import Run
from runs.states import Effect, ErrorCode, RunStatus
from runs.stopping import cancel_token, grades, tracking
from runs.stopping.cancel_token import CancelToken
from runs.translation import callbacks, tool_gate
from runs.translation.failures import INTERNAL, with_details
from runs.translation.translator import Translator
from runs.worker import graph_input, without_checkpoints
from runs.worker.ending import Ending, StopReason, of_graph, of_stop
from runs.worker.refusals import reason_to_ask_again

logger = logging.getLogger(__name__)

without_checkpoints.allow()

P = ParamSpec("P")
T = TypeVar("T")

STREAM_MODES: Any = ["messages", "updates", "tools", "custom"]  # its type lacks "tools"

# Seconds between two looks at the limits of a running turn.
_LIMITS_INTERVAL = 0.5


class Execution:
    """One claim of one run, from the claim to the ending.

    ``afterwards`` takes what is left to do when it has ended, with a name for it. ``on_stragglers_ended`` is
    called with the execution when nothing that was given up on works any more.
    """

    def __init__(
        self,
        run: Run,
        writer: EventWriter,
        checkpoints: Checkpoints,
        afterwards: Callable[[Coroutine[Any, Any, None], str], None],
        on_stragglers_ended: "Callable[[Execution], None]",
    ) -> None:
        self.run = run
        self.token = CancelToken()
        self.ended = asyncio.Event()
        self._writer = writer
        self._checkpoints = checkpoints
        self._afterwards = afterwards
        self._on_stragglers_ended = on_stragglers_ended
        self._log = writer.open(run)
        self._saver: FencedSaver = checkpoints.fenced(run.id, run.claim)
        self._control = RunControl()
        self._stop: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self._fenced = False
        self._slow_tool = ""  # the tool that took too long

    # Asked from outside

    def stop(self, reason: StopReason) -> None:
        """Stop the graph, soon. The first reason decides, but FENCED always counts."""
        self._fenced |= reason is StopReason.FENCED
        if not self._stop.done():
            self._stop.set_result(reason)

    async def fence(self) -> None:
        """The run was ended without this execution. When this returns, it writes no checkpoint any more."""
        self.stop(StopReason.FENCED)
        await self._saver.fence()

    def drain(self) -> None:
        """Let the graph end at its next step. A turn in its last step still completes."""
        self._control.request_drain()

    # From claim to ending

    async def run_to_its_end(self) -> None:
        """Execute the run and write its ending. Never raises but for a programming error."""
        try:
            await self._conclude(await self._drive())
        except Fenced:
            logger.info("Run %s is not ours any more; what it still did was dropped.", self.run.id)
            await self._stop_everything()  # it may have been a checkpoint that found out
        except Exception as error:
            # Nobody above could do better: the run has to end, with what is known of it in the log.
            logger.exception("The execution of run %s broke.", self.run.id)
            await self._stop_everything()
            broken = Ending(RunStatus.FAILED, with_details(INTERNAL, error))
            result = await self._finish(broken, repaired=False)
            if result is Outcome.CANCEL_FIRST:
                await self._finish(Ending(RunStatus.CANCELLED), repaired=False)
        finally:
            await self._saver.fence()
            self._writer.release(self._log)
            self.ended.set()

    async def _drive(self) -> Ending:
        """Run the graph to its end or stop it. Then nothing of it works any more, or it was given up on."""
        turn = await _retry_while_away(in_thread, graph_input.load, self.run)
        self._translator = Translator(
            self._log,
            run_id=str(self.run.id),
            log_updates="updates" in self.run.stream_modes,
            log_custom="custom" in self.run.stream_modes,
            known=turn.known,
            token=self.token,
            on_result=self._on_loop(self._tool_returned),
        )
        try:
            name = self.run.session.agent
            agent = agents.built(name)
            if agent is None:
                agent = await in_thread(agents.load, name)
            tool_gate.wrap(agent.tool_nodes)
            self._log.gated_tools = agent.gated_tools
            self._translator.tools.gated_tools = agent.gated_tools
            self._graph = agent.graph_on(self._saver)
            if self._fenced:
                raise Fenced  # before the repair of earlier turns, which writes checkpoints
            given, saved = await _retry_while_away(graph_input.begin, self._graph, turn)
            for namespace, messages in saved:
                self._translator.recover(namespace, messages)
        except AgentMismatch as error:
            return Ending(RunStatus.FAILED, Failure(ErrorCode.INTERNAL, error.message))
        if self._stop.done():
            return of_stop(self._stop.result(), self._slow_tool, self._log.failure)

        tracking.track_generators()
        context = contextvars.copy_context()
        context.run(cancel_token.current.set, self.token)
        context.run(callbacks.current.set, self._translator.handler)
        gate = tool_gate.ToolGate(self._translator.tools, self.token, self._log.flush)
        context.run(tool_gate.gate.set, gate)
        graph_task = asyncio.create_task(self._stream(given), name=f"graph {self.run.id}", context=context)
        limits = asyncio.create_task(self._keep_limits(), name=f"limits {self.run.id}")
        try:
            first: set[asyncio.Future[Any]] = {graph_task, limits, self._stop}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            limits.cancel()
        if graph_task.done():
            ended = of_graph(graph_task, self._translator, self.run.id)
            if self.token.activity.alive():  # what its tools started and did not end
                await self._stop_everything(graph_task)
            return await self._with_questions(ended, graph_task)
        stopped = of_stop(self._stop.result(), self._slow_tool, self._log.failure)
        await self._stop_everything(graph_task)
        return stopped

    async def _with_questions(self, ended: Ending, graph_task: "asyncio.Task[None]") -> Ending:
        """The ending, with several questions in order. A turn whose graph refused an answer waits again."""
        refusal = None
        error = None if graph_task.cancelled() else graph_task.exception()
        if error is not None and ended.status is RunStatus.FAILED:
            refusal = reason_to_ask_again(error, self._saver.raised_at_answers, self._translator)
        if refusal is None and len(ended.questions) < 2:
            return ended
        try:
            asked = await _retry_while_away(graph_input.pending_questions, self._graph, self.run)
        except Exception:  # what cannot be read may hold values of the agent's own classes, or a remote part
            logger.exception("The questions of run %s cannot be read from its checkpoint.", self.run.id)
            return ended
        return Ending(RunStatus.WAITING, questions=asked, refusal=refusal) if asked else ended

    async def _stream(self, given: Any) -> None:
        config: RunnableConfig = {
            "configurable": {"thread_id": str(self.run.session_id)},
            "recursion_limit": settings.RUNS_STEP_LIMIT,
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

    async def _keep_limits(self) -> None:
        """Stop the graph when it passes one of its limits."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.RUNS_RUN_TIMEOUT
        while not self._stop.done():
            await asyncio.sleep(_LIMITS_INTERVAL)
            if self._log.failure is not None:
                fenced = isinstance(self._log.failure, Fenced)
                self.stop(StopReason.FENCED if fenced else StopReason.LOG)
            elif loop.time() > deadline:
                self.stop(StopReason.DEADLINE)
            elif self._silence() > settings.RUNS_IDLE_TIMEOUT:
                self.stop(StopReason.SILENCE)
            elif (slow := self._find_slow_tool()) is not None:
                self._slow_tool = slow
                self.stop(StopReason.TOOL_TIME)

    def _silence(self) -> float:
        """For how many seconds the quietest LLM call in progress has given nothing."""
        meter = self._translator.messages.meter
        return time.monotonic() - meter.last_activity if meter.open else 0

    def _find_slow_tool(self) -> str | None:
        """The name of a tool that has been at work for too long."""
        tools = self._translator.tools
        limit = time.monotonic() - settings.RUNS_TOOL_TIMEOUT
        return next((tools.name(call_id) for call_id, begun in tools.open.items() if begun < limit), None)

    # Stopping

    async def _stop_everything(self, graph_task: "asyncio.Task[None] | None" = None) -> None:
        await grades.stop(
            self.token,
            graph_task,
            on_stragglers_ended=self._on_loop(self._on_stragglers_ended, self),
            on_result=self._on_loop(self._tool_returned),
        )

    def _on_loop(self, callback: Callable[..., None], *args: Any) -> Callable[..., None]:
        """``callback`` on the loop, for whatever thread calls.

        It runs in our context instead of the caller's. So what it starts belongs to the engine and not to the
        run.
        """
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        def call(*more: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is leaving
                loop.call_soon_threadsafe(partial(callback, *args, *more), context=context)

        return call

    def _tool_returned(self, call_id: str) -> None:
        """If the run was given up on, its tool's effect is known now. Nothing else changes."""
        if self.token.activity.given_up:
            self._afterwards(self._note_effect(call_id), f"effect of {call_id}")

    async def _note_effect(self, call_id: str) -> None:
        await self.ended.wait()  # the ending says "unknown" first
        await _retry_while_away(in_thread, tool_calls.straggler_ended, self.run.id, call_id, Effect.DONE)

    # Endings

    async def _conclude(self, ending: Ending) -> None:
        """Flush, repair, and write the ending. If a cancel was accepted first, the run ends as cancelled."""
        await self._saver.fence()
        if self._fenced:
            raise Fenced
        result = await self._write(ending)
        if result is Outcome.CANCEL_FIRST:
            result = await self._write(Ending(RunStatus.CANCELLED))
        if result is Outcome.FENCED:
            raise Fenced

    async def _write(self, ending: Ending) -> Outcome:
        # A graph may complete with a tool call that has no result. No provider takes such a history.
        unanswered = ending.status is RunStatus.COMPLETED and self._translator.tools.unanswered
        if ending.status is RunStatus.INTERRUPTED:  # another run may resume it, so nothing is ended
            self._translator.tools.log_begun()
        else:
            self._translator.close(ending.status)
        await self._log.flush()
        if ending.status is RunStatus.WAITING:
            return await _retry_while_away(
                in_thread,
                questions.wait,
                self.run.id,
                self.run.claim,
                ending.questions,
                ending.refusal,
            )
        repaired = ending.status is RunStatus.COMPLETED
        if unanswered or ending.status in (RunStatus.CANCELLED, RunStatus.FAILED):
            repaired = await self._repair()
        return await self._finish(ending, repaired=repaired)

    async def _finish(self, ending: Ending, *, repaired: bool) -> Outcome:
        finish = partial(
            endings.finish,
            self.run.id,
            self.run.claim,
            ending.status,
            error=ending.error,
            reason=ending.reason,
            repaired=repaired,
            escalated=self.token.activity.given_up,
            not_begun=self._translator.tools.not_begun(),
        )
        return await _retry_while_away(in_thread, finish)

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


async def _retry_while_away(function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Await ``function(...)``. While the database is away, try again: a turn has to begin and to end."""
    pause = 0.1
    while True:
        try:
            return await function(*args, **options)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("The database does not answer, trying again: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)
