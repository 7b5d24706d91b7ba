"""The commands that an operator can give to runs, and what each will do to a run as it is now."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser

from runs import operators
from runs.admin.formatting import short
from runs.errors import EngineError
from runs.lifecycle import liveness, predicates
from runs.models import Run, ToolCall
from runs.operators import Done
from runs.states import ACTIVE, TERMINAL, Effect, RunStatus

# Runs that one command may be given to at once.
LIMIT = 500


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, and the facts that decide what a command will do to it."""

    run: Run
    worker_is_dead: bool
    cancel_is_overdue: bool
    uncertain_tools: list[str]  # names of tools whose effect is unknown
    ahead: Run | None  # the run that its session's queue waits behind
    has_taker: bool  # whether a worker takes turns


@dataclass(frozen=True, slots=True)
class Command:
    """One thing that an operator can do."""

    name: str  # also of its permission: runs.<name>_run
    label: str
    explanation: str
    foresee: Callable[[Seen], str]  # a sentence
    applies: Callable[[Run], bool]  # whether it is offered for this run
    perform: Callable[[AbstractBaseUser, UUID, str], Done]
    is_drastic: bool = False

    @property
    def permission(self) -> str:
        return f"{self.name}_run"


def look(runs: Iterable[Run]) -> list[Seen]:
    """The facts of these runs, which were read with session and worker."""
    runs = list(runs)
    ids = [run.id for run in runs]
    overdue = set(predicates.overdue_cancellations().filter(run__in=ids).values_list("run", flat=True))
    uncertain: dict[UUID, list[str]] = {}
    unknown = ToolCall.objects.filter(run__in=ids, effect=Effect.UNKNOWN)
    for run_id, name in unknown.values_list("run", "name"):
        uncertain.setdefault(run_id, []).append(name)
    workers = {run.worker for run in runs if run.worker is not None and run.status == RunStatus.RUNNING}
    dead = {worker.id for worker in workers if liveness.is_dead(worker)}
    ahead = predicates.ahead_of_queues({run.session_id for run in runs if run.status == RunStatus.QUEUED})
    has_taker = bool(liveness.taking_turns())
    return [
        Seen(
            run,
            run.worker_id is None or run.worker_id in dead,
            run.id in overdue,
            uncertain.get(run.id, []),
            ahead.get(run.session_id),
            has_taker,
        )
        for run in runs
    ]


def perform(
    command: Command, actor: AbstractBaseUser, runs: Sequence[Run], reason: str
) -> list[dict[str, Any]]:
    """Give the command to each run, each in its own transaction: ``[{"run", "changed", "told"}]``."""
    report = []
    for run in runs:
        try:
            done = command.perform(actor, run.id, reason)
            changed, text = done.changed, " ".join(done.told)
        except EngineError as error:
            changed, text = False, error.message
        report.append({"run": str(run.id), "changed": changed, "told": text})
    return report


def _ended(seen: Seen) -> str | None:
    if seen.run.status not in TERMINAL:
        return None
    return f"Nothing changes: it has ended already ({seen.run.status})."


def _without_execution(seen: Seen) -> str | None:
    if seen.run.status == RunStatus.QUEUED:
        return "It leaves the line and ends cancelled at once; its message stays in the history."
    if seen.run.status == RunStatus.WAITING:
        return "It ends cancelled at once; its question can no longer be answered."
    return None


def _foresee_cancel(seen: Seen) -> str:
    if text := _ended(seen) or _without_execution(seen):
        return text
    if seen.worker_is_dead:
        return "Its worker is gone, so it ends cancelled at once."
    if seen.run.cancel_requested_at is not None:
        return "A cancel was accepted before; its worker is told again."
    grace = settings.RUNS_CANCEL_GRACE
    return f"Its worker is told to stop. Tools have {grace:g} seconds to notice, then they are given up."


def _foresee_force_cancel(seen: Seen) -> str:
    if text := _ended(seen) or _without_execution(seen):
        return text
    return (
        "It ends cancelled now, whatever its worker does. Tool calls in progress are marked as of unknown "
        "effect, and nothing that still works for it is kept."
    )


def _foresee_reconcile(seen: Seen) -> str:
    if seen.run.is_undecided:
        return "It is dismissed: nobody goes on from it, and its session is free again."
    if text := _ended(seen):
        return text
    if seen.run.status == RunStatus.RUNNING:
        if seen.worker_is_dead:
            end = "interrupted" if seen.run.cancel_requested_at is None else "cancelled"
            return f"Its worker is lost, so it ends {end}."
        if seen.cancel_is_overdue:
            return "Its overdue cancel is settled as timed out; the run goes on until it is force-cancelled."
        return "Nothing changes: its worker is alive. Force-cancel would end it."
    if seen.run.status == RunStatus.WAITING and seen.run.answers is None:
        return "Nothing changes: it waits for its user's answer."
    if seen.ahead is not None:
        undecided = seen.ahead.is_undecided
        what = "about which nobody has decided" if undecided else f"which is {seen.ahead.status}"
        return f"Nothing changes: it waits behind the run {short(seen.ahead.id)}, {what}."
    if not seen.has_taker:
        return "Nothing changes: no worker is there that takes turns. It goes on when one has started."
    return "Its session is offered to a worker again."


def _foresee_resume(seen: Seen) -> str:
    if not seen.run.is_undecided:
        return "Nothing changes: only an interrupted run about which nobody has decided can be resumed."
    text = "A new run goes on from its last saved step."
    if seen.uncertain_tools:
        names = ", ".join(sorted(set(seen.uncertain_tools)))
        text += f" These tools may have done their work already and may do it again: {names}."
    return text


def _foresee_dismiss(seen: Seen) -> str:
    if not seen.run.is_undecided:
        return "Nothing changes: only an interrupted run about which nobody has decided can be dismissed."
    return "Nobody goes on from it; what it said stays in the history, and its session is free again."


def _is_active(run: Run) -> bool:
    return run.status in ACTIVE


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "cancel",
            "Cancel",
            "The run's worker is asked to stop. A cancel undoes nothing that tools have done.",
            _foresee_cancel,
            _is_active,
            operators.cancel,
        ),
        Command(
            "force_cancel",
            "Force-cancel",
            "The run is ended first, without its worker: for workers that are dead or frozen.",
            _foresee_force_cancel,
            _is_active,
            operators.force_cancel,
            is_drastic=True,
        ),
        Command(
            "reconcile",
            "Reconcile",
            "The run is looked at and brought into order; the run of a living worker is left alone.",
            _foresee_reconcile,
            lambda run: _is_active(run) or run.is_undecided,
            operators.reconcile,
        ),
        Command(
            "resume",
            "Resume",
            "A new run goes on where an interrupted one was lost.",
            _foresee_resume,
            lambda run: run.is_undecided,
            operators.resume,
        ),
        Command(
            "dismiss",
            "Dismiss",
            "An interrupted run is closed: nobody goes on from it.",
            _foresee_dismiss,
            lambda run: run.is_undecided,
            operators.dismiss,
        ),
    )
}
