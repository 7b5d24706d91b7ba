"""How a turn ends: by its graph, or because the graph was stopped from outside."""

import asyncio
import logging
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.conf import settings
from langgraph.errors import GraphDrained, NodeCancelledError

from runs.errors import Fenced
from runs.foundation.exceptions import traceback_of
from runs.lifecycle.endings import Failure
from runs.states import ErrorCode, InterruptReason, RunStatus
from runs.translation.failures import INTERNAL, explain, with_details
from runs.translation.translator import Translator

logger = logging.getLogger(__name__)


class StopReason(StrEnum):
    """Why a graph was stopped from outside. The first reason decides the ending."""

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
    error: Failure | None = None  # if it failed
    reason: InterruptReason | None = None  # if it was interrupted
    questions: list[dict[str, Any]] = field(default_factory=list)  # if it waits for answers
    refusal: str | None = None  # why it asks again


def of_stop(reason: StopReason, slow_tool: str, log_failure: BaseException | None) -> Ending:
    """The ending of a graph that is being stopped.

    With TOOL_TIME, ``slow_tool`` took too long. With LOG, ``log_failure`` is why.
    """
    match reason:
        case StopReason.CANCEL:
            return Ending(RunStatus.CANCELLED)
        case StopReason.SHUTDOWN:
            return Ending(RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN)
        case StopReason.FENCED:
            return Ending(RunStatus.INTERRUPTED)  # never written: the run is not ours
        case StopReason.LOG:
            return Ending(RunStatus.FAILED, with_details(INTERNAL, log_failure) if log_failure else INTERNAL)
        case StopReason.DEADLINE:
            said = f"The turn took longer than {settings.RUNS_RUN_TIMEOUT:g} seconds."
            return _failed(ErrorCode.TIMEOUT, said)
        case StopReason.SILENCE:
            said = f"The model's provider said nothing for {settings.RUNS_IDLE_TIMEOUT:g} seconds."
            return _failed(ErrorCode.PROVIDER, said)
        case StopReason.TOOL_TIME:
            said = f"The tool {slow_tool} took longer than {settings.RUNS_TOOL_TIMEOUT:g} seconds."
            return _failed(ErrorCode.TIMEOUT, said)


def of_graph(graph_task: "asyncio.Task[None]", translator: Translator, run_id: UUID) -> Ending:
    """The ending of a graph that came to its end by itself. Raises Fenced if the graph did."""
    if graph_task.cancelled():
        return Ending(RunStatus.FAILED, explain(NodeCancelledError("graph"), translator.errors))
    error = graph_task.exception()
    if error is None:
        if translator.questions:
            return Ending(RunStatus.WAITING, questions=translator.questions)
        if translator.messages.ends_broken and translator.tools.unanswered:
            said = "The model asked for a tool in a form that cannot be read, and that was its answer."
            return _failed(ErrorCode.TOOL, said)
        return Ending(RunStatus.COMPLETED)
    if isinstance(error, GraphDrained):
        return Ending(RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN)
    if isinstance(error, Fenced):
        raise error
    logger.info("Run %s failed.\n%s", run_id, traceback_of(error))
    return Ending(RunStatus.FAILED, explain(error, translator.errors))


def _failed(code: ErrorCode, message: str) -> Ending:
    return Ending(RunStatus.FAILED, Failure(code, message))
