"""Bring one run into order when an operator asks for it, and say what was done.

The sweep (``runs.recovery.sweep``) does most of this by itself. This is for operators who cannot wait for it.
A live worker's run is never touched: only force-cancel acts without the worker.
"""

from dataclasses import dataclass, field

from runs.errors import NotInterrupted
from runs.lifecycle import admission, cancel_requests, dispatch, endings, liveness, predicates
from runs.models import Run
from runs.states import InterruptReason, Resolution, RunStatus


@dataclass
class Reconciled:
    """What was done about a run, and what was found."""

    changed: bool = False
    told: list[str] = field(default_factory=list)  # a sentence each

    def did(self, sentence: str) -> None:
        self.changed = True
        self.told.append(sentence)

    def found(self, sentence: str) -> None:
        self.told.append(sentence)


def reconcile(run: Run) -> Reconciled:
    """One look at a run as it is now."""
    result = Reconciled()
    match run.status:
        case RunStatus.RUNNING:
            _running(run, result)
        case RunStatus.QUEUED:
            _queued(run, result)
        case RunStatus.WAITING:
            _waiting(run, result)
        case RunStatus.INTERRUPTED:
            _interrupted(run, result)
    _history(run, result)
    return result


def _running(run: Run, result: Reconciled) -> None:
    if run.worker is not None and not liveness.is_dead(run.worker):
        for overdue in predicates.overdue_cancellations().filter(run=run):
            if cancel_requests.time_out_cancellation(overdue.id):
                result.did("Its cancel was overdue and has timed out; it may be tried again.")
        result.found("Its worker is alive, so the run goes on; force-cancel would end it.")
        return
    was_ended = endings.interrupt(run.id, run.worker_id, InterruptReason.WORKER_LOST)
    run.refresh_from_db()
    if was_ended:
        result.did(f"Its worker was lost, so the run was ended: {run.status}.")
    if run.is_undecided:
        result.found("Its user may resume, retry or dismiss it; another reconcile would dismiss it.")


def _queued(run: Run, result: Reconciled) -> None:
    dispatch.request(run.session_id)
    ahead = predicates.ahead_of_queues([run.session_id]).get(run.session_id)
    if ahead is None:
        _offered("It is queued", result)
    elif ahead.status == RunStatus.INTERRUPTED:
        result.found(
            f"It is queued behind the interrupted run {ahead.id}; nobody has decided about that yet."
        )
    else:
        result.found(f"It is queued behind the run {ahead.id}, which is {ahead.status}.")


def _waiting(run: Run, result: Reconciled) -> None:
    if run.answers is None:
        result.found("It waits for its user's answer; no worker is concerned with it.")
    else:
        dispatch.request(run.session_id)
        _offered("It was answered", result)


def _offered(found: str, result: Reconciled) -> None:
    if liveness.taking_turns():
        result.found(f"{found}; its session was offered to a worker again.")
    else:
        result.found(f"{found}, and no worker is there that takes turns; it goes on when one has started.")


def _interrupted(run: Run, result: Reconciled) -> None:
    try:
        admission.dismiss(run)
    except NotInterrupted:  # it was decided about before
        return
    run.refresh_from_db()
    result.did("It was interrupted and nobody had decided about it, so it was dismissed.")


def _history(run: Run, result: Reconciled) -> None:
    """Only a claim may write checkpoints, so the repair is left to the next claim."""
    if not run.is_terminal:
        return
    is_part_of_another = run.resolution in (Resolution.RESUMED, Resolution.RETRIED)
    if run.repaired or is_part_of_another:
        result.found(f"It has ended ({run.status}) and its history is in order.")
    elif not run.is_undecided:
        result.found("The session's next turn puts its history in order before it calls the model.")
