"""The life of a run: the only writer of ``Run.status``.

Every change locks the session, then the run (lock order: session, run, cancellation), looks at the status
it expects, and writes status, event, statistics and settling in one transaction. Somebody else having been
first is a normal return, not an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from runs import metrics, statements
from runs.errors import Invalid, NotFound, NotInterrupted, NotWaiting
from runs.foundation import sql
from runs.foundation.values import lookup_key
from runs.lifecycle import cancellation, closing_events, dispatch, liveness, predicates, statistics
from runs.live import notices
from runs.log import events
from runs.models import Cancellation, Run, Session, ToolCall
from runs.states import (
    ACTIVE,
    TERMINAL,
    TERMINAL_EVENT,
    CancelOutcome,
    Effect,
    ErrorCode,
    EventType,
    InterruptReason,
    Resolution,
    RunStatus,
    TitleSource,
)
from runs.wire import encoding, representations
from runs.wire import statistics as numbers


class Result(StrEnum):
    """What became of a change that an execution asked for."""

    DONE = "done"
    CANCEL_FIRST = "cancel_first"  # a cancel was accepted before; nothing changed, end the run cancelled
    FENCED = "fenced"  # the run is not the execution's any more; nothing changed


@dataclass(frozen=True, slots=True)
class Error:
    """Why a run failed."""

    code: ErrorCode
    message: str  # a sentence a person can read


@contextmanager
def locked_session(session_id: UUID) -> Iterator[Session]:
    """A transaction that holds the session. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session.first(session_id)
        if session is None:
            raise NotFound
        yield session


@contextmanager
def locked_run(run_id: UUID) -> Iterator[tuple[Session, Run]]:
    """A transaction that holds the run and, before it, its session. Raises NotFound."""
    with transaction.atomic():
        session = statements.lock_session_of.first(run_id)
        run = statements.lock_run.first(run_id) if session is not None else None
        if session is None or run is None:
            raise NotFound
        run.session = session
        yield session, run


# The session itself


def session_created(session: Session) -> None:
    """Tell the owner's lists of a new session."""
    notices.session_changed(session)


def rename(session_id: UUID, title: str, source: TitleSource) -> None:
    """Change the title; what the system writes never takes the place of what the user wrote."""
    with locked_session(session_id) as session:
        if source != TitleSource.USER and session.title_source == TitleSource.USER:
            return
        session.title, session.title_source = title, source
        notices.touch(session)


# Into the queue


def enqueue(session: Session, run: Run, *, head: bool = False) -> Run:
    """Admit a new run to a locked session: durable, with its user message, and last in line (or first)."""
    session.last_line += 1
    run.session = session
    run.agent = session.agent
    run.line = -session.last_line if head else session.last_line
    run.status = RunStatus.QUEUED
    run.message_count = 0 if run.resumes_id else 1  # a resuming run goes on with the message that is there
    events.record(run, [_queued(run)], run.created_at)
    sql.insert(run)
    notices.touch(session)
    dispatch.request(session.id)
    return run


# Out of the queue


def claim(session_id: UUID, worker_id: UUID) -> Run | None:
    """Take the session's first in line for a worker, or None when there is nothing to execute now.

    An answered run goes first: it holds its place. Behind an interrupted run that nobody has decided
    about, the queue waits.
    """
    try:
        with locked_session(session_id) as session:
            worker = statements.worker.first(worker_id)
            if worker is None:
                return None  # taken for dead; it has to sign on again first
            run_id = _next_in_line(session)
            if run_id is None:
                return None
            run = statements.lock_run(run_id)[0]
            now = timezone.now()
            first_claim = run.status == RunStatus.QUEUED
            run.status = RunStatus.RUNNING
            run.claim += 1
            run.claimed_at = now
            run.worker = worker
            if first_claim:
                run.started_at = now
                _leave_queue(session, run)
                started = {
                    "worker": str(worker_id),
                    "resumes": _id(run.resumes_id),
                    "retries": _id(run.retries_id),
                }
                events.record(run, [(EventType.RUN_STARTED, started)])
            run.save_changes()
            run.session = session
            notices.touch(session)
            return run
    except NotFound:
        return None


def _next_in_line(session: Session) -> UUID | None:
    """The run of a locked session that may be claimed now."""
    # Sorted here: SQLite would go through all runs to have them in order.
    line = sorted(statements.order_of_open_runs(session.id))
    for _, run_id, status, answers in line:
        if status != RunStatus.QUEUED:
            return run_id if status == RunStatus.WAITING and answers is not None else None
    return line[0][1] if line else None


def unresolved_interruption(session: Session) -> Run | None:
    """The session's interrupted run about which nobody has decided; nothing is claimed behind it.

    It need not be the latest: what was queued behind it and cancelled there has ended after it.
    """
    return undecided().filter(session=session).first()


def undecided() -> QuerySet[Run]:
    """Interrupted runs about which nobody has decided, at most one of a session."""
    return Run.objects.filter(predicates.UNDECIDED)


# Questions


def wait(run_id: UUID, claim: int, questions: Sequence[Mapping[str, Any]]) -> Result:
    """The graph asked the user something: no execution exists until the answer is claimed."""
    with _owned(run_id, claim) as owned:
        if isinstance(owned, Result):
            return owned
        session, run = owned
        if run.cancel_requested_at is not None:
            return Result.CANCEL_FIRST
        run.status = RunStatus.WAITING
        run.questions = list(questions)
        run.answers = None
        statistics.pause(run, timezone.now())
        events.record(run, [(EventType.RUN_WAITING, {"questions": run.questions})])
        run.save_changes()
        notices.touch(session)
        return Result.DONE


def answer(run_id: UUID, answers: Mapping[str, Any], by: Any) -> Run:
    """Store the answers of a waiting run, once. The run stays waiting until a claim takes it."""
    with locked_run(run_id) as (session, run):
        if run.status != RunStatus.WAITING or run.answers is not None:
            raise NotWaiting
        asked = {question["id"] for question in run.questions or ()}
        if set(answers) != asked:
            raise Invalid(f'"answers" must give a value to each question: {", ".join(sorted(asked))}.')
        run.answers = dict(answers)
        run.answered_by = by
        events.record(run, [(EventType.RUN_ANSWERED, {"answers": run.answers, "by": by.get_username()})])
        run.save_changes()
        notices.touch(session)
        dispatch.request(session.id)
        return run


# Ends


def finish(
    run_id: UUID,
    claim: int,
    status: RunStatus,
    *,
    error: Error | None = None,
    reason: InterruptReason | None = None,
    repaired: bool = False,
    escalated: bool = False,
) -> Result:
    """The execution's own ending: completed, failed, interrupted, or cancelled once a cancel was accepted.

    ``repaired`` says that the checkpoint holds the turn in a sendable form; ``escalated`` that something
    had to be given up on.
    """
    with _owned(run_id, claim) as owned:
        if isinstance(owned, Result):
            return owned
        session, run = owned
        if run.cancel_requested_at is not None and status != RunStatus.CANCELLED:
            return Result.CANCEL_FIRST
        _end(session, run, status, error=error, reason=reason, repaired=repaired, escalated=escalated)
        return Result.DONE


def interrupt(run_id: UUID, worker_id: UUID | None, reason: InterruptReason) -> bool:
    """Take a running run away from a worker that lost it; cancelled instead if a cancel had been accepted."""
    try:
        with locked_run(run_id) as (session, run):
            if run.status != RunStatus.RUNNING or run.worker_id != worker_id:
                return False
            _end(session, run, RunStatus.INTERRUPTED, reason=reason)
            return True
    except NotFound:
        return False


def request_cancel(run_id: UUID, *, source: str, reason: str, requested_by: Any) -> Cancellation | None:
    """Accept a cancel of this run, or join the one in progress; None when the run had ended otherwise.

    A run without an execution ends at once, and so does one whose worker is dead.
    """
    with locked_run(run_id) as (session, run):
        if run.status in TERMINAL:
            return _cancellation_of(run)
        who = {"source": source, "reason": reason, "requested_by": requested_by}
        if run.status != RunStatus.RUNNING:
            _end(session, run, RunStatus.CANCELLED, asked=who)
            return Cancellation.objects.get(run=run)
        operation = cancellation.unsettled(session)
        if operation is None or operation.run_id != run.id:
            now = timezone.now()
            run.cancel_requested_at = run.cancel_requested_at or now
            run.save_changes()
            operation = cancellation.accept(session, run, at=now, **who)
        if run.worker is None or liveness.is_dead(run.worker):
            notices.stop_execution(run, fenced=True)  # should it live after all
            _end(session, run, RunStatus.CANCELLED, outcome=CancelOutcome.RECONCILED)
            operation.refresh_from_db()
        else:
            notices.stop_execution(run, fenced=False)
        return operation


def request_session_cancel(
    session_id: UUID, *, source: str, reason: str, requested_by: Any
) -> Cancellation | None:
    """Cancel the active run and every run queued now; the operation of the first in line.

    When nothing is active and the latest run was cancelled, this request came late for that operation and
    gets its result; else None.
    """
    operations: list[Cancellation | None] = []
    with locked_session(session_id) as session:
        active = Run.objects.filter(session=session, status__in=ACTIVE).order_by("position", "line")
        # SQLite and PostgreSQL sort nulls differently: those that left the queue come first.
        for run in sorted(active, key=lambda run: run.status == RunStatus.QUEUED):
            operation = request_cancel(run.id, source=source, reason=reason, requested_by=requested_by)
            operations.append(operation)
        if not operations:
            latest = Cancellation.objects.filter(run__session=session, run__position=session.last_position)
            operations.append(latest.filter(run__status=RunStatus.CANCELLED).order_by("-accepted_at").first())
    return operations[0]


def force_cancel(run_id: UUID, *, source: str, reason: str, requested_by: Any) -> Cancellation | None:
    """End a run durably without its worker, fence what still lives; None when it had ended otherwise."""
    with locked_run(run_id) as (session, run):
        if run.status in TERMINAL:
            return _cancellation_of(run)
        who = {"source": source, "reason": reason, "requested_by": requested_by}
        was_running = run.status == RunStatus.RUNNING
        if was_running:
            dispatch.seal(run.id)
        if was_running and cancellation.unsettled(session) is None:
            now = timezone.now()
            run.cancel_requested_at = run.cancel_requested_at or now
            cancellation.accept(session, run, at=now, **who)
        notices.stop_execution(run, fenced=True)
        outcome = CancelOutcome.RECONCILED if was_running else CancelOutcome.CANCELLED
        _end(session, run, RunStatus.CANCELLED, asked=who, outcome=outcome, escalated=was_running)
        return Cancellation.objects.filter(run=run).latest("accepted_at")


def time_out_cancellation(cancellation_id: UUID) -> bool:
    """Settle an overdue operation whose worker lives and does not answer. The mark on the run stays."""
    run_id = Cancellation.objects.filter(id=cancellation_id).values_list("run_id", flat=True).first()
    if run_id is None:
        return False
    with locked_run(run_id) as (session, _):
        overdue = cancellation.unsettled(session)
        if overdue is None or overdue.id != cancellation_id:
            return False
        cancellation.settle(session, overdue, CancelOutcome.TIMED_OUT)
        return True


# What becomes of an ended run


def resolve(session: Session, run_id: UUID, resolution: Resolution) -> Run:
    """Decide about a run of a locked session, once. Raises NotInterrupted.

    While an interrupted run waits for a decision, that one alone. Otherwise a retry may be decided on any
    ending of the latest run, even on one that was dismissed; it takes back the whole turn, also what earlier
    runs of it did.
    """
    run = Run.objects.select_for_update().get(id=run_id)
    retried = resolution == Resolution.RETRIED
    undecided = unresolved_interruption(session)
    if undecided is not None:
        is_open = run.id == undecided.id
    else:
        is_latest = run.position == session.last_position and run.status in TERMINAL
        is_open = retried and is_latest and run.resolution in (None, Resolution.DISMISSED)
    if not is_open:
        raise NotInterrupted
    if retried:
        turn = Run.objects.filter(session=session, message_id=run.message_id)
        turn.update(resolution=resolution, repaired=False)  # its messages have to leave the history again
        run.refresh_from_db()
    else:
        run.resolution = resolution
        run.save_changes()
    notices.touch(session)
    dispatch.request(session.id)
    return run


def mark_repaired(run_ids: Sequence[UUID]) -> None:
    """The checkpoint now holds these ended runs in a sendable form."""
    Run.objects.filter(id__in=run_ids, status__in=TERMINAL).update(repaired=True)


def _mark_turn_repaired(run: Run) -> None:
    """With a run, those that it resumes are in the history."""
    turn = Run.objects.filter(
        session=run.session_id, message_id=run.message_id, resolution=Resolution.RESUMED
    )
    turn.update(repaired=True)


def straggler_ended(run_id: UUID, call_id: str, effect: Effect) -> None:
    """What was given up on did end: bring the one field up to date, and nothing else."""
    with transaction.atomic():
        unknown = ToolCall.objects.filter(run=run_id, call_id=lookup_key(call_id), effect=Effect.UNKNOWN)
        if unknown.update(effect=effect):
            notices.effect_changed(Run.objects.get(id=run_id), call_id, effect)


# The one place where a run ends


def _end(
    session: Session,
    run: Run,
    status: RunStatus,
    *,
    asked: Mapping[str, Any] | None = None,
    error: Error | None = None,
    reason: InterruptReason | None = None,
    outcome: CancelOutcome = CancelOutcome.CANCELLED,
    repaired: bool = False,
    escalated: bool = False,
) -> None:
    """Give a locked active run its one terminal status and event, with statistics and settling."""
    now = timezone.now()
    # Of an execution that is lost, the last event is the last sign of work.
    lost = reason is InterruptReason.WORKER_LOST or outcome == CancelOutcome.RECONCILED
    if run.cancel_requested_at is not None and status != RunStatus.CANCELLED:
        # An accepted cancel wins; whoever ends the run for another reason reconciles it.
        status, error, reason, outcome = RunStatus.CANCELLED, None, None, CancelOutcome.RECONCILED
    before = run.status
    if before == RunStatus.QUEUED:
        _leave_queue(session, run)
    elif before == RunStatus.RUNNING:
        statistics.pause(run, run.last_event_at if lost else now)
    statistics.close(run)
    run.status = status
    run.finished_at = now
    run.repaired = repaired
    if repaired and run.resumes_id is not None:
        _mark_turn_repaired(run)
    if error is not None:
        run.error_code, run.error_message = error.code, error.message
    if status == RunStatus.CANCELLED and run.cancel_requested_at is None:
        run.cancel_requested_at = now

    operation = None
    if status == RunStatus.CANCELLED:
        operation = _settle(session, run, asked, outcome, escalated=escalated)
    owed = closing_events.owed(run, lost=lost)
    run.message_count += closing_events.messages_in(owed)
    terminal: dict[str, Any] = {"statistics": numbers.of_run(run)}
    if error is not None:
        terminal["error"] = {"code": error.code, "message": error.message}
    if operation is not None:
        terminal["cancellation"] = representations.cancellation(operation)
    if reason is not None:
        terminal["reason"] = reason
    events.record(run, [*owed, (TERMINAL_EVENT[status], terminal)], now)
    run.save_changes()
    metrics.run_ended(run)
    notices.touch(session)
    if statements.a_queued_run(session.id):
        dispatch.request(session.id)


def _settle(
    session: Session,
    run: Run,
    asked: Mapping[str, Any] | None,
    outcome: CancelOutcome,
    *,
    escalated: bool,
) -> Cancellation | None:
    """Settle the operation that ends this run, or record the one that ended it at once."""
    operation = Cancellation.objects.filter(run=run, settled_at__isnull=True).first()
    if operation is not None:
        cancellation.settle(session, operation, outcome, escalated=escalated)
        return operation
    if asked is None and (late := _cancellation_of(run)) is not None:
        # It had timed out, and is carried out all the same: whoever tries again has to hear of that.
        asked = {"source": late.source, "reason": late.reason, "requested_by": late.requested_by}
    if asked is None:
        return None
    at = timezone.now()
    return cancellation.record_settled(session, run, at=at, outcome=outcome, escalated=escalated, **asked)


def _cancellation_of(run: Run) -> Cancellation | None:
    """The last operation on an ended run, if that is what ended it."""
    if run.status != RunStatus.CANCELLED:
        return None
    return Cancellation.objects.filter(run=run).order_by("-accepted_at").first()


@contextmanager
def _owned(run_id: UUID, claim: int) -> Iterator[tuple[Session, Run] | Result]:
    """The locked run of an execution, or FENCED when it is not running under this claim number any more."""
    try:
        with locked_run(run_id) as (session, run):
            if run.status != RunStatus.RUNNING or run.claim != claim:
                yield Result.FENCED
            else:
                yield session, run
    except NotFound:
        yield Result.FENCED


def _leave_queue(session: Session, run: Run) -> None:
    """Give the run its place in the session's stream, and tell what was recorded before it had one."""
    session.last_position += 1
    run.position = position = session.last_position
    type, data = _queued(run)
    told = [(type, encoding.event(run.id, 1, type, encoding.encode(data), run.created_at))]
    transaction.on_commit(lambda: events.publish(run.session_id, run.id, position, 1, told))


def _queued(run: Run) -> events.Entry:
    return EventType.RUN_QUEUED, {"message": run.message_id, "input": run.input}


def _id(value: UUID | None) -> str | None:
    return str(value) if value else None
