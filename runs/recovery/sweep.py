"""The sweep: brings into order what a crash, a kill or a lost signal left behind.

Any number of processes may sweep at once, since each step is a compare-and-set. Nothing waits for somebody to
open a page.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from runs import agents
from runs.errors import AgentMismatch, NotFound, NotInterrupted
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread, is_held
from runs.lifecycle import (
    admission,
    cancel_requests,
    dispatch,
    endings,
    jobs,
    liveness,
    predicates,
    stragglers,
)
from runs.memory.checkpoints import Checkpoints
from runs.models import Run, Worker
from runs.recovery import orphans
from runs.states import InterruptReason, RunStatus

logger = logging.getLogger(__name__)

# Ended runs that lose their worker at once. A worker may have had a million of them, and nobody else can
# write while their rows are changed.
_TAKEN_OFF = 2000


@dataclass
class Swept:
    """What was done to bring everything into order."""

    workers_lost: int = 0  # found dead and taken off the list
    runs_interrupted: int = 0  # taken from dead workers: interrupted, or cancelled when that was accepted
    stragglers_forgotten: int = 0  # ended runs whose stragglers went with their worker
    cancellations_timed_out: int = 0  # overdue while their worker lives
    sessions_offered: int = 0  # to the worker that sweeps, with a run to claim that nobody was seen to take
    runs_resumed: int = 0  # interrupted ones that go on by themselves, as their agents' policy is
    runs_dismissed: int = 0  # interrupted ones that nobody goes on from, as their agents' policy is
    jobs_forgotten: int = 0  # of the queue, on which nobody works any more
    deletions_finished: int = 0  # of sessions whose checkpoints were left behind

    def __str__(self) -> str:
        return ", ".join(
            f"{field.name.replace('_', ' ')}: {getattr(self, field.name)}" for field in fields(self)
        )


async def recover(
    checkpoints: Checkpoints, own: UUID | None = None, watch: liveness.Watch | None = None
) -> Swept:
    """Sweep, then apply the agents' policies to interrupted turns, and finish deletions.

    Parameters as in ``sweep``.
    """
    swept = await in_thread(sweep, own, watch)
    for run in await in_thread(_undecided):
        await _apply_policy(run, checkpoints, swept)
    swept.deletions_finished += await orphans.clear_overdue(checkpoints)
    return swept


def sweep(own: UUID | None = None, watch: liveness.Watch | None = None) -> Swept:
    """One sweep. ``own``: the worker that sweeps; it never finds itself dead.

    ``watch``: of a process that sweeps regularly, when it could see the heartbeats of others.
    """
    swept = Swept()
    _remove_dead_workers(swept, liveness.dead(own, watch))
    _end_without_worker(swept)
    _forget_stragglers(swept)
    _settle_overdue(swept)
    _offer_sessions(swept)
    if dispatch.is_shared():
        swept.jobs_forgotten += jobs.forget_lost(liveness.patience())
    return swept


def _remove_dead_workers(swept: Swept, dead: Iterable[Worker]) -> None:
    for worker in dead:
        lost = Run.objects.filter(worker=worker, status=RunStatus.RUNNING)
        swept.runs_interrupted += interrupt_lost(lost.values_list("id", flat=True), worker.id)
        if lost.exists():
            continue
        # Only if it has not come back meanwhile; a zombie that finds its row gone stops by itself.
        silent_since = Worker.objects.filter(id=worker.id, heartbeat_at__lte=worker.heartbeat_at)
        swept.workers_lost += remove_worker(silent_since)


def _each(ids: Iterable[UUID], step: Callable[[UUID], bool]) -> int:
    """Do ``step`` for each; how many were changed.

    One that is faulty, or whose row somebody holds, is left to the next sweep.
    """
    changed = 0
    for one in ids:
        try:
            changed += step(one)
        except Exception as error:
            if is_held(error):
                logger.warning("%s is held by somebody and left to the next sweep.", one)
            elif isinstance(error, DATABASE_UNAVAILABLE):
                raise  # the others would fail as well
            else:
                logger.exception("%s could not be brought into order.", one)
    return changed


def remove_worker(chosen: QuerySet[Worker]) -> bool:
    """Delete the row of one worker, chosen by its id and perhaps more; whether it is gone.

    First its ended runs lose it. If they are too many for one sweep, the next one goes on.
    """
    with transaction.atomic():
        ended = Run.objects.select_for_update(skip_locked=True).exclude(status=RunStatus.RUNNING)
        some = list(ended.filter(worker__in=chosen).values_list("id", flat=True)[:_TAKEN_OFF])
        Run.objects.filter(id__in=some).update(worker=None)
    if len(some) == _TAKEN_OFF:
        return False
    gone, _ = chosen.delete()
    return bool(gone)


def _end_without_worker(swept: Swept) -> None:
    """Runs whose worker's row is gone: another sweep removed it between two of its steps."""
    without_worker = Run.objects.filter(worker=None, status=RunStatus.RUNNING)
    swept.runs_interrupted += interrupt_lost(without_worker.values_list("id", flat=True), None)


def interrupt_lost(run_ids: Iterable[UUID], worker_id: UUID | None) -> int:
    """Interrupt those that still run under this worker, or under none; how many."""
    lost = partial(endings.interrupt, worker_id=worker_id, reason=InterruptReason.WORKER_LOST)
    return _each(run_ids, lost)


def _forget_stragglers(swept: Swept) -> None:
    """What an ended run had left at work went with the process of its worker."""
    # Asked for those without a worker, SQLite would read all that ever lost theirs.
    straggling = Run.objects.filter(stragglers__gt=0).values_list("id", "worker")
    lost = [run_id for run_id, worker_id in straggling if worker_id is None]
    forget = partial(stragglers.note, count=0, expected={"worker": None})
    swept.stragglers_forgotten += _each(lost, forget)


def _settle_overdue(swept: Swept) -> None:
    swept.cancellations_timed_out += _each(
        predicates.overdue_cancellations().values_list("id", flat=True), cancel_requests.time_out_cancellation
    )


def _offer_sessions(swept: Swept) -> None:
    """Sessions in which something can be claimed."""
    for session_id in Run.objects.claimable().values_list("session", flat=True).distinct():
        swept.sessions_offered += dispatch.offer(session_id)


# Interrupted turns, by the policies of their agents


def _undecided() -> list[Run]:
    """Interrupted runs about which somebody has to decide, of agents that do not leave it to the user."""
    by_policy = [name for name in agents.names() if agents.policy_of(name).on_interrupt != "ask"]
    interrupted = Run.objects.undecided().filter(session__agent__in=by_policy)
    return list(interrupted.select_related("session", "requested_by").order_by("finished_at"))


async def _apply_policy(run: Run, checkpoints: Checkpoints, swept: Swept) -> None:
    """Resume or dismiss; a decision of somebody else's that came first stands."""
    try:
        if agents.policy_of(run.session.agent).on_interrupt == "dismiss":
            await in_thread(admission.dismiss, run)
            swept.runs_dismissed += 1
        elif await _resume_if_safe(run, checkpoints):
            swept.runs_resumed += 1
    except (NotInterrupted, NotFound, AgentMismatch):
        pass
    except Exception:  # a graph's own reducers may raise anything; the other turns go on all the same
        logger.exception("Interrupted run %s is left to its user.", run.id)


async def hand_over(run_id: UUID, checkpoints: Checkpoints, own: UUID) -> None:
    """Let another worker go on at once with a turn that the worker ``own`` broke off in order to leave.

    Only if that is safe, if another worker is there, and if the agent does not dismiss interrupted turns. The
    user is not asked, since nothing was lost. Raises whatever the graph's reducers raise.
    """
    try:
        run = await in_thread(_to_hand_over, run_id, own)
        if run is not None:
            await _resume_if_safe(run, checkpoints)
    except (NotInterrupted, NotFound, AgentMismatch):
        pass  # it was decided about meanwhile


def _to_hand_over(run_id: UUID, own: UUID) -> Run | None:
    run = Run.objects.undecided().select_related("session", "requested_by").filter(id=run_id).first()
    others = liveness.beating().filter(leaving=False).exclude(id=own)
    if run is None or all(liveness.is_gone(other) for other in others):
        return None
    return run if agents.policy_of(run.session.agent).on_interrupt != "dismiss" else None


async def _resume_if_safe(run: Run, checkpoints: Checkpoints) -> bool:
    from runs.recovery import safety

    if run.automatic_resumes >= settings.RUNS_MAX_RESUMES or not await safety.is_safe(run, checkpoints):
        return False
    # The turn still belongs to the user who asked for it.
    await in_thread(admission.resume, run, run.requested_by, automatic=True)
    return True
