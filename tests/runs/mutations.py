"""The functions that hold the invariants, and how each is broken on purpose.

By the sentence that says what then happens: where the function is, its name, and what makes a broken twin of
it. A break that the machine would not notice is no guard of anything.
"""

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from django.utils import timezone

from runs import statements
from runs.errors import Fenced
from runs.lifecycle import (
    admission,
    cancel_operations,
    cancel_requests,
    closing_events,
    dispatch,
    endings,
    liveness,
    predicates,
    questions,
    queue,
    resolution,
    statistics,
    status,
)
from runs.live import notices
from runs.log import events, tool_calls, writer
from runs.memory.checkpoints import saver
from runs.memory.checkpoints.fence import Fence, run_shielded
from runs.memory.checkpoints.storage import Operation
from runs.models import Cancellation, Run, Session, ToolCall, Worker
from runs.recovery import sweep
from runs.states import ACTIVE, OCCUPYING, Effect, Resolution, RunStatus
from runs.worker import graph_input
from tests.runs.memory.writes import Writes
from tests.runs.session_machine import SessionMachine

Function: TypeAlias = Callable[..., Any]
Twin: TypeAlias = Callable[[Any], Any]  # makes the broken one of what stands there
Break: TypeAlias = tuple[Any, str, Twin]


def nothing(original: Function) -> Function:
    """Does nothing."""
    return lambda *args, **options: None


def gives(value: object) -> Twin:
    """Gives always the same."""
    return lambda original: lambda *args, **options: value


ANYTHING = type("Anything", (), {"__eq__": lambda *_: True, "__ne__": lambda *_: False, "__hash__": None})()


# Claims


def claims(choose: Callable[[list[Run]], list[Run]]) -> Break:
    """The queue gives another run: ``choose`` gets the runs of the session."""

    def twin(original: Function) -> Function:
        def following(session_id: UUID) -> UUID | None:
            found = choose(list(Run.objects.filter(session=session_id).order_by("queue_place")))
            return found[0].id if found else None

        return following

    return queue, "_next", twin


def _of(runs: list[Run], *statuses: str) -> list[Run]:
    return [run for run in runs if run.status in statuses]


def _behind_the_interrupted(runs: list[Run]) -> list[Run]:
    return (_of(runs, *OCCUPYING) and _answered(runs)) or _of(runs, RunStatus.QUEUED)


def _answered(runs: list[Run]) -> list[Run]:
    return [run for run in _of(runs, RunStatus.WAITING) if run.answers is not None]


def _never_raised(original: Function) -> Function:
    def take(session: Session, run: Run, worker: Worker) -> Run | None:
        taken = original(session, run, worker)
        if taken is not None:
            Run.objects.filter(id=taken.id).update(claim=1)
            taken.claim = 1
        return taken

    return take


# Endings


def _rewrites(original: Function) -> Function:
    return lambda self, **expected: original(self)


def _all_repaired(original: Function) -> Function:
    return lambda *args, **how: original(*args, **{**how, "repaired": True})


def _closes_interrupted(original: Function) -> Function:
    def of(run: Run) -> list[Any]:
        if run.status == RunStatus.INTERRUPTED:
            return tool_calls.ends_of_open(run)
        return original(run)

    return of


# Cancels


def _moves_the_mark(original: Function) -> Function:
    def accept(session: Session, run: Run, asked: Any) -> Cancellation | None:
        run.cancel_requested_at = None
        return original(session, run, asked)

    return accept


def _spares_the_queue(original: Function) -> Function:
    def request(session_id: UUID, **asked: Any) -> Cancellation | None:
        active = Run.objects.filter(session=session_id, status__in=OCCUPYING).first()
        return cancel_requests.request_cancel(active.id, **asked) if active else None

    return request


def _tells_of_the_queue(original: Function) -> Function:
    def request(session_id: UUID, **asked: Any) -> Cancellation | None:
        active = list(Run.objects.filter(session=session_id, status__in=ACTIVE).order_by("-queue_place"))
        original(session_id, **asked)
        return Cancellation.objects.filter(run__in=active[:1]).last()

    return request


def _times_out_the_next(original: Function) -> Function:
    def time_out(cancellation_id: UUID) -> bool:
        found = Cancellation.objects.get(id=cancellation_id)
        pending = Cancellation.objects.filter(session=found.session_id, settled_at=None).first()
        return original((pending or found).id)

    return time_out


def _pending_without_revision(original: Function) -> Function:
    def change(session: Session, pending: bool) -> None:
        session.has_changed = True
        notices.cancellation_changed(session, pending)

    return change


# Log


def _as_if_for_the_first_time(original: Function) -> Function:
    return lambda parts, retrying: original(parts, False)


def _as_if_committed(original: Function) -> Function:
    def commit(parts: list[writer._Part], retrying: bool) -> list[writer.Outcome]:
        return [writer.Outcome.COMMITTED for _ in parts] if retrying else original(parts, retrying)

    return commit


def _without_the_first(original: Function) -> Function:
    def publish(session_id: UUID, run_id: UUID, position: int, first: int, told: Sequence[Any]) -> None:
        original(session_id, run_id, position, max(first, 2), told[1:] if first == 1 else told)

    return publish


def batches(**lies: object) -> Break:
    """The event writer believes this of the run of each part."""

    def twin(original: Function) -> Function:
        def rows(run_ids: Sequence[UUID]) -> list[tuple[Any, ...]]:
            return [
                (found, lies.get("status", is_now), lies.get("claim", claim), *others)
                for found, is_now, claim, *others in original(run_ids)
            ]

        return rows

    return statements, "lock_runs_of_batch", twin


def _without_text_in_progress(original: Function) -> Function:
    def increments(counts: Counter[str]) -> tuple[str, tuple[int, ...]]:
        return original(type(counts)({name: n for name, n in counts.items() if name != "open_output_tokens"}))

    return increments


# Admission and decisions


def _leaves_out(*statuses: str) -> Twin:
    return lambda original: (
        lambda session_id: [one for one in original(session_id) if one.status not in statuses]
    )


def _with_a_session_of_its_own(original: Function) -> Function:
    return lambda session, active, actor: original(copy.copy(session), active, actor)


def _keeps_the_retried(original: Function) -> Function:
    def resolve(session: Session, run_id: UUID, how: Resolution) -> Run:
        run = original(session, run_id, how)
        if how == Resolution.RETRIED:
            Run.objects.filter(id=run_id).update(repaired=True)
        return run

    return resolve


def _may(condition: Callable[[Session, Run, Resolution], bool]) -> Twin:
    return lambda original: (
        lambda session, run, how: original(session, run, how) or condition(session, run, how)
    )


def _is_retry(how: Resolution) -> bool:
    return how == Resolution.RETRIED


def _keeps_old_answers(original: Function) -> Function:
    def wait(run_id: UUID, claim: int, asked: Sequence[Mapping[str, Any]]) -> status.Outcome:
        before = Run.objects.get(id=run_id).answers
        done = original(run_id, claim, asked)
        if done is status.Outcome.DONE:
            Run.objects.filter(id=run_id).update(answers=before)
        return done

    return wait


def _of_any_request(original: Any) -> SimpleNamespace:
    def first(session_id: UUID, key: str) -> Run | None:
        found = original.first(session_id, key)
        if found is not None:
            found.request_digest = ANYTHING
        return found

    return SimpleNamespace(first=first)


def _at_the_end(original: Function) -> Function:
    def enqueue(session: Session, run: Run, *, head: bool = False) -> Run:
        return original(session, run)

    return enqueue


def _counts_again(original: Function) -> Function:
    def enqueue(session: Session, run: Run, *, head: bool = False) -> Run:
        queued = original(session, run, head=head)
        Run.objects.filter(id=queued.id).update(message_count=1)
        return queued

    return enqueue


# Checkpoints


async def _without_waiting(self: Fence) -> None:
    self.closed = True


async def _without_closing(self: Fence) -> None:
    while self._inside:
        await asyncio.wait(self._inside)


async def _unshielded(operation: Callable[[], Coroutine[Any, Any, Any]], *fences: Fence) -> Any:
    if any(fence.closed for fence in fences):
        raise Fenced
    return await operation()


def _swallows_the_cancel(original: Function) -> Function:
    async def run(operation: Callable[[], Coroutine[Any, Any, Any]], *fences: Fence) -> Any:
        try:
            return await original(operation, *fences)
        except asyncio.CancelledError:
            return None

    return run


def _write_behind(fences: Callable[[Any], list[Fence]], *claim: str) -> Twin:
    """What ``fences(saver)`` are is all that holds a write back."""

    def write(self: saver.FencedSaver, operation: Operation[Any]) -> Coroutine[Any, Any, Any]:
        claims = [getattr(self, name) for name in claim]
        return run_shielded(lambda: self._storage.write(operation, *claims), *fences(self))

    return lambda original: write


CHECKPOINTS: dict[str, Break] = {
    "an operation begins behind a closed fence": (
        saver,
        "run_shielded",
        lambda original: lambda operation, *fences: original(operation),
    ),
    "a fence does not know what went through": (Fence, "enter", nothing),
    "a fence stays open": (Fence, "close", lambda _: _without_closing),
    "a fence closes on what is on its way": (Fence, "close", lambda _: _without_waiting),
    "a cancel cuts an operation": (saver, "run_shielded", lambda _: _unshielded),
    "an operation swallows the cancel": (saver, "run_shielded", _swallows_the_cancel),
    "a fenced saver writes": (
        saver.FencedSaver,
        "_write",
        _write_behind(lambda self: [self._storage.fence], "_claim"),
    ),
    "a saver writes when the process has left": (
        saver.FencedSaver,
        "_write",
        _write_behind(lambda self: [self._fence], "_claim"),
    ),
    "a write does not name its claim": (
        saver.FencedSaver,
        "_write",
        _write_behind(lambda self: [self._fence, self._storage.fence]),
    ),
    "late writes on a checkpoint pass": (
        saver.FencedSaver,
        "aput_writes",
        lambda _: lambda self, *args: self._read(lambda found: found.aput_writes(*args)),
    ),
}

GUARDS: dict[str, dict[str, Break]] = {
    "One terminal fact": {
        "a status is written over another": (Run, "write", _rewrites),
        "an ended run ends again": (status, "of_claim", lambda _: lambda claim: {"claim": claim}),
        "an earlier claim ends the run": (status, "of_claim", gives({"status": RunStatus.RUNNING})),
        "a sweep takes what its worker executes no more": (
            status,
            "of_worker",
            lambda _: lambda worker_id: {"worker": worker_id},
        ),
        "a sweep takes the run of another worker": (
            status,
            "of_worker",
            gives({"status": RunStatus.RUNNING}),
        ),
        "a cancel ends an ended run": (
            Run,
            "is_terminal",
            lambda _: property(lambda run: run.status == RunStatus.CANCELLED),
        ),
        "a living worker is taken for dead": (liveness, "is_dead", gives(True)),
    },
    "An accepted cancel wins": {
        "another ending overrules an accepted cancel": (status, "_no_cancel_before", gives({})),
        "a second acceptance moves the time of the first": (cancel_requests, "_accept", _moves_the_mark),
        "a session's cancel spares the queue": (cancel_requests, "request_session_cancel", _spares_the_queue),
        "an interrupting turn spares what is active": (admission, "_cancel_all", nothing),
        "the worker is not told to stop": (notices, "stop_execution", nothing),
    },
    "One operation": {
        "a second cancel is a second operation": (cancel_operations, "unsettled", gives(None)),
        "a session's cancel answers with the queue's": (
            cancel_requests,
            "request_session_cancel",
            _tells_of_the_queue,
        ),
    },
    "Pending is derived": {
        "a change of pending does not move the revision": (
            cancel_operations,
            "_pending_changes",
            _pending_without_revision,
        ),
        "a change of pending is not told": (notices, "cancellation_changed", nothing),
        "an interrupting turn writes back the session it had read": (
            admission,
            "_cancel_all",
            _with_a_session_of_its_own,
        ),
    },
    "Nobody waits for ever": {
        "an ending leaves its cancel unsettled": (cancel_operations, "settle_ended", gives(None)),
        "a cancel of a dead worker's run waits": (liveness, "is_dead", gives(False)),
        "an overdue cancel is not settled": (cancel_operations, "settle", gives(True)),
        "a late sweep settles the next cancel": (
            cancel_requests,
            "time_out_cancellation",
            _times_out_the_next,
        ),
        "a sweep settles what is not overdue": (
            predicates,
            "overdue_cancellations",
            lambda _: lambda: Cancellation.objects.filter(settled_at=None),
        ),
        "the end of a run whose cancel had timed out names none": (
            cancel_operations,
            "of_ended",
            gives(None),
        ),
        "the sweep forgets dead workers": (liveness, "is_gone", gives(False)),
        "the sweep forgets runs without a worker": (sweep, "_end_without_worker", nothing),
        "a slow worker on SQLite is taken for dead": (
            liveness,
            "silent",
            lambda _: lambda: Worker.objects.filter(heartbeat_at__lt=timezone.now() - liveness.patience()),
        ),
    },
    "Log, then tell": {
        "events are told before their commit": (
            events,
            "transaction",
            lambda _: SimpleNamespace(on_commit=lambda tell: tell()),
        ),
        "a batch whose reply was lost is written twice": (writer, "_commit", _as_if_for_the_first_time),
        "a batch that was lost is not written again": (writer, "_commit", _as_if_committed),
        "that a run was queued is never told": (events, "publish", _without_the_first),
        "nobody is told that a session changed": (notices, "session_changed", nothing),
    },
    "No work after the end": {
        "the log takes events of an ended run": batches(status=RunStatus.RUNNING),
        "the log takes events of an earlier claim": batches(claim=ANYTHING),
        "a claim does not raise its number": (queue, "_take", _never_raised),
        "a worker that is taken for dead is given a run": (
            statements,
            "worker",
            lambda _: SimpleNamespace(first=lambda worker_id: Worker(id=worker_id)),
        ),
        "a force-cancel leaves the saver unfenced": (dispatch, "fence", nothing),
        "open calls stay open at the end": (
            tool_calls,
            "ends_of_open",
            lambda _: lambda run, *, is_lost: [],
        ),
        "a straggler changes what was known": (
            tool_calls,
            "straggler_ended",
            lambda _: (
                lambda run_id, call_id, effect: ToolCall.objects.filter(run=run_id, call_id=call_id).update(
                    effect=effect
                )
            ),
        ),
    },
    "No work after the end: checkpoints": CHECKPOINTS,
    "Numbers are true": {
        "estimates of open calls are forgotten at the end": (statistics, "close", nothing),
        "a batch forgets its counts": (writer, "_increments", gives(("", ()))),
        "text in progress is not counted": (writer, "_increments", _without_text_in_progress),
        "calls closed at the end are no messages": (closing_events, "messages_in", gives(0)),
        "a resumed turn counts its message again": (queue, "enqueue", _counts_again),
        "the last stretch is not counted": (statistics, "pause", nothing),
        "the time that a lost execution was silent counts": (
            statistics,
            "pause",
            lambda original: lambda run, at: original(run, timezone.now()),
        ),
    },
    "History is always sendable": {
        "a batch keeps no tool calls": (tool_calls, "project_encoded", nothing),
        "what may be continued is closed": (closing_events, "of", _closes_interrupted),
        "a call that never began may have worked": (tool_calls, "_effect_at_end", gives(Effect.UNKNOWN)),
        "a call that a lost run may have begun did nothing": (
            tool_calls,
            "_effect_at_end",
            lambda original: lambda call, is_lost: original(call, False),
        ),
        "a turn ends without an answer": (closing_events, "_note", lambda _: lambda run: []),
        "every end counts as repaired": (endings, "end", _all_repaired),
        "what is retried stays in the history": (resolution, "resolve", _keeps_the_retried),
        "half a turn is retried": (
            resolution,
            "_of_turn",
            lambda _: lambda run: Run.objects.filter(id=run.id),
        ),
        "a turn that resumes takes the history for repaired": (
            graph_input,
            "_load_earlier",
            lambda original: lambda turn: None if turn.continues else original(turn),
        ),
    },
    "The queue": {
        "the last in the queue is claimed first": claims(
            lambda runs: _answered(runs) or _of(runs, RunStatus.QUEUED)[::-1]
        ),
        "an undecided turn does not hold the queue": claims(_behind_the_interrupted),
        "an answered run is never claimed again": claims(
            lambda runs: [] if _of(runs, *OCCUPYING, RunStatus.INTERRUPTED) else _of(runs, RunStatus.QUEUED)
        ),
        "a question is claimed before its answer": claims(
            lambda runs: _of(runs, RunStatus.WAITING) or _of(runs, RunStatus.QUEUED)
        ),
        "a run is claimed beside another": claims(lambda runs: _of(runs, RunStatus.QUEUED)),
        "what goes on has to queue": (
            queue,
            "enqueue",
            _at_the_end,
        ),
        "half an answer is enough": (questions, "_check", nothing),
        "an old answer is taken for the next question": (questions, "wait", _keeps_old_answers),
        "a decision about another run is taken": (
            resolution,
            "_may_resolve",
            _may(lambda session, run, how: Run.objects.undecided().filter(session=session).exists()),
        ),
        "a retry is taken twice": (
            resolution,
            "_may_resolve",
            _may(lambda session, run, how: _is_retry(how) and run.position == session.last_position),
        ),
        "any ended run can be resumed": (
            resolution,
            "_may_resolve",
            _may(lambda session, run, how: run.is_terminal and run.position == session.last_position),
        ),
        "an earlier turn can be retried": (
            resolution,
            "_may_resolve",
            _may(lambda session, run, how: _is_retry(how) and run.is_terminal and run.resolution is None),
        ),
        "a new message leaves an interrupted turn undecided": (
            statements,
            "open_runs",
            _leaves_out(RunStatus.INTERRUPTED),
        ),
        "a turn is taken beside a queued one": (
            statements,
            "open_runs",
            _leaves_out(RunStatus.QUEUED),
        ),
        "a key is forgotten": (
            statements,
            "run_with_key",
            lambda _: SimpleNamespace(first=lambda *_: None),
        ),
        "a key gives its run to another request": (
            statements,
            "run_with_key",
            _of_any_request,
        ),
        "nobody is offered what can be claimed": (dispatch, "request", nothing),
        "a session is offered before the commit": (
            dispatch,
            "request",
            lambda _: dispatch.offer,
        ),
        "the sweep offers nothing": (sweep, "_offer_sessions", nothing),
    },
}
BREAKS = {name: found for invariant in GUARDS.values() for name, found in invariant.items()}


def machine_for(name: str) -> type[SessionMachine] | type[Writes]:
    """The one that has to notice."""
    return Writes if name in CHECKPOINTS else SessionMachine


def break_guard(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Put a broken twin in the place of a function."""
    owner, function, twin = BREAKS[name]
    monkeypatch.setattr(owner, function, twin(getattr(owner, function)))
