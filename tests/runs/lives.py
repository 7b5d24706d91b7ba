"""A machine that lets runs live in any order of events that the database can see, and looks after each step.

One thread, one transaction that is rolled back at the end: what interleaves are the steps of workers, users,
operators and sweeps. What two transactions do to each other at the same moment is not seen here.
"""

import os
from collections import Counter, defaultdict
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction
from django.utils import timezone
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from runs import admission, dispatch, events, lifecycle, liveness, recovery, statistics
from runs.errors import IdempotencyConflict, NotInterrupted, NotWaiting, QueueFull, RunActive
from runs.lifecycle import Error, Result
from runs.models import Cancellation, Run, RunEvent, Session, ToolCall, Worker
from runs.states import (
    ACTIVE,
    OCCUPYING,
    TERMINAL,
    TERMINAL_EVENT,
    CancelOutcome,
    Effect,
    ErrorCode,
    EventType,
    InterruptReason,
    Resolution,
    RunStatus,
    ToolStatus,
)
from runs.transcript import note_id
from tests.runs.servers import NO_PROCESS

TERMINAL_TYPES = frozenset(TERMINAL_EVENT.values())
# What may still change of a run once it has ended: what became of it, and what is known of its history.
AFTER_THE_END = {"resolution", "repaired", "worker_id"}


KINDS = st.lists(
    st.sampled_from(["text", "ask", "start", "end", "fail", "open", "count"]), min_size=1, max_size=4
)
ENDINGS = st.sampled_from([RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED])


class Execution(SimpleNamespace):
    """What an execution knows: ``run_id``, ``claim`` and ``batches``. It may be a zombie."""


class Lives(RuleBasedStateMachine):
    """Two sessions, workers that come and go, and everybody who may do something to a run."""

    executions = Bundle("executions")

    @initialize(target=executions)
    def begin(self):
        """Everything, and one run that is executed."""
        self.transaction = transaction.atomic()
        self.transaction.__enter__()
        self.offered = set()
        dispatch.attach(SimpleNamespace(offer=self.offered.add, seal=lambda run_id: None))
        self.user = get_user_model().objects.create(username=f"user {uuid4()}")
        self.sessions = [Session.objects.create(owner=self.user, agent="assistant") for _ in range(2)]
        self.workers = []
        self.counted = defaultdict(Counter)  # by run, from what was committed
        self.ended = {}  # by run, its row and log as they were at its end
        self.asked = {}  # by run, when its first cancel was accepted
        self.revisions = Counter()
        self.settled = {}
        self.keys = {}
        self.start_worker()
        self.start_worker()
        self.admit(0, "reject", None, "one")
        return self.claim(0, 0)

    def teardown(self):
        dispatch.attach(None)
        if hasattr(self, "transaction"):
            transaction.set_rollback(True)
            self.transaction.__exit__(None, None, None)

    # Users

    @rule(
        n=st.integers(0, 1),
        multitask=st.sampled_from(["reject", "enqueue", "enqueue", "interrupt"]),
        key=st.sampled_from([None, None, "a", "b"]),
        text=st.sampled_from(["one", "two"]),
    )
    def admit(self, n, multitask, key, text):
        session = self.sessions[n]
        active = Run.objects.filter(session=session, status__in=ACTIVE)
        before = {run.id: run for run in active}
        queued = sum(run.status == RunStatus.QUEUED for run in before.values())
        turn = admission.Turn.checked(
            text, multitask=multitask, on_disconnect="continue", stream_modes=(), key=key
        )
        known = self.keys.get((session.id, key)) if key else None
        try:
            run = admission.admit(session.id, self.user, turn)
        except IdempotencyConflict:
            assert known is not None
            assert known[1] != turn.digest
            return
        except RunActive:
            assert known is None
            assert multitask == "reject"
            assert before
            return
        except QueueFull:
            assert queued >= settings.RUNS_QUEUE_LIMIT
            return
        if known is not None:
            assert (run.id, turn.digest) == known, "the same key gave another run"
            return
        assert multitask != "reject" or not before, "a turn was taken beside an active one"
        if key:
            self.keys[session.id, key] = run.id, turn.digest
        self.counted[run.id]["message_count"] = 1
        if multitask == "interrupt":
            for one in Run.objects.filter(id__in=before):
                assert one.cancel_requested_at is not None, "interrupt left a run alone"

    @rule(n=st.integers(0, 1))
    def answer(self, n):
        run = Run.objects.filter(session=self.sessions[n], status=RunStatus.WAITING).first()
        if run is None:
            return
        answered = run.answers is not None
        try:
            lifecycle.answer(run.id, {"q": "yes"}, self.user)
        except NotWaiting:
            assert answered
        else:
            assert not answered, "a question was answered twice"

    @rule(n=st.integers(0, 1), how=st.sampled_from(list(Resolution)))
    def decide(self, n, how):
        latest = (
            Run.objects.filter(session=self.sessions[n], position__isnull=False).order_by("position").last()
        )
        if latest is None:
            return
        interrupted = latest.status == RunStatus.INTERRUPTED and latest.resolution is None
        try:
            if how == Resolution.RESUMED:
                new = admission.resume(latest, self.user)
                self.counted[new.id]["message_count"] = 0
            elif how == Resolution.RETRIED:
                new = admission.retry(latest, self.user, None)
                self.counted[new.id]["message_count"] = 1
            else:
                admission.dismiss(latest)
        except NotInterrupted:
            assert not interrupted
            return
        if how == Resolution.RETRIED:
            assert latest.status in TERMINAL
            assert latest.resolution in (None, Resolution.DISMISSED), "a turn was retried twice"
        else:
            assert interrupted, f"{latest.status} {latest.resolution} was {how}"
        if how != Resolution.DISMISSED:
            assert new.line == min(
                Run.objects.filter(session=new.session_id, status=RunStatus.QUEUED).values_list(
                    "line", flat=True
                )
            ), "what goes on is not the first in line"

    # Cancels

    @rule(n=st.integers(0, 1), first=st.booleans())
    def cancel(self, n, first):
        active = Run.objects.filter(session=self.sessions[n]).order_by("position", "line")
        run = (active.filter(status__in=OCCUPYING) if first else active).last()
        if run is None:
            return
        operation = lifecycle.request_cancel(run.id, source="user", reason="", requested_by=self.user)
        self.look_at_cancel(run, operation)

    @rule(n=st.integers(0, 1))
    def cancel_session(self, n):
        active = list(Run.objects.filter(session=self.sessions[n], status__in=ACTIVE))
        lifecycle.request_session_cancel(
            self.sessions[n].id, source="user", reason="", requested_by=self.user
        )
        for run in Run.objects.filter(id__in=[run.id for run in active]):
            assert run.cancel_requested_at is not None, f"{run.status} survived the session's cancel"

    @rule(n=st.integers(0, 1))
    def force_cancel(self, n):
        run = Run.objects.filter(session=self.sessions[n], status__in=ACTIVE).order_by("line").first()
        if run is not None:
            lifecycle.force_cancel(run.id, source="operator", reason="hangs", requested_by=self.user)
            run.refresh_from_db()
            assert run.status == RunStatus.CANCELLED

    def look_at_cancel(self, before, operation):
        after = Run.objects.get(id=before.id)
        if before.status in TERMINAL and before.status != RunStatus.CANCELLED:
            assert operation is None
            return
        assert operation is not None
        assert operation.run_id == before.id
        if before.status != RunStatus.RUNNING or not self.is_alive(before.worker_id):
            assert after.status == RunStatus.CANCELLED, (
                "a run without an execution was left for somebody to stop"
            )
            assert operation.settled_at is not None
        else:
            assert after.status == RunStatus.RUNNING
            assert operation.settled_at is None

    # Workers

    @rule()
    @precondition(lambda self: len(self.workers) < 4)
    def start_worker(self):
        host, boot = liveness.this_host()
        pid = os.getpid()
        row = Worker.objects.create(
            host=host, boot=boot, pid=pid, pid_started=liveness.process_started(pid), version="test"
        )
        self.workers.append(row.id)

    @rule(w=st.integers(0, 3))
    def kill_worker(self, w):
        """Its executions stay behind as zombies, which go on trying."""
        Worker.objects.filter(id=self.worker(w)).update(pid=NO_PROCESS, pid_started="1")

    @rule(w=st.integers(0, 3))
    def bury_worker(self, w):
        """As a sweeper that comes no further than that, or one whose worker claims in between."""
        if len(self.workers) > 1:
            Worker.objects.filter(id=self.worker(w)).delete()

    @rule(target=executions, n=st.integers(0, 1), w=st.integers(0, 3))
    def claim(self, n, w):
        session = Session.objects.get(id=self.sessions[n].id)
        expected = self.claimable(Run.objects.filter(session=session))
        run = lifecycle.claim(session.id, self.worker(w))
        if run is None:
            known = Worker.objects.filter(id=self.worker(w)).exists()
            assert expected is None or not known, "what is first in line could not be claimed"
            return multiple()
        assert run.id == expected, "not the first in line was claimed"
        return Execution(run_id=run.id, claim=run.claim, batches=run.batches)

    @rule(
        writing=st.lists(executions, min_size=1, max_size=2, unique_by=lambda execution: execution.run_id),
        kinds=KINDS,
        reply_lost=st.booleans(),
    )
    def write(self, writing, kinds, reply_lost):
        parts = [self.part(execution, kinds) for execution in writing]
        expected = [self.owns(execution) for execution in writing]
        outcomes = events._commit(parts, False)
        assert [outcome == events.Written.COMMITTED for outcome in outcomes] == expected, "the fence failed"
        if reply_lost:
            assert events._commit(parts, True) == outcomes
        for part, execution, outcome in zip(parts, writing, outcomes, strict=True):
            if outcome == events.Written.COMMITTED:
                execution.batches += 1
                self.counted[execution.run_id].update(part.counts)

    @rule(execution=executions)
    def wait(self, execution):
        owns, asked = self.owns(execution), self.is_asked(execution.run_id)
        done = lifecycle.wait(execution.run_id, execution.claim, [{"id": "q", "value": "?"}])
        assert done is self.expected(owns, asked)

    @rule(
        execution=executions,
        status=ENDINGS,
    )
    def finish(self, execution, status):
        owns, asked = self.owns(execution), self.is_asked(execution.run_id)
        if status == RunStatus.CANCELLED and not asked:
            return  # an execution ends cancelled only when it was asked to
        error = Error(ErrorCode.PROVIDER, "It broke.") if status == RunStatus.FAILED else None
        reason = InterruptReason.SHUTDOWN if status == RunStatus.INTERRUPTED else None
        done = lifecycle.finish(execution.run_id, execution.claim, status, error=error, reason=reason)
        assert done is self.expected(owns, asked and status != RunStatus.CANCELLED)

    @rule(
        target=executions, n=st.integers(0, 1), w=st.integers(0, 3), kinds=KINDS, ending=st.none() | ENDINGS
    )
    def work(self, n, w, kinds, ending):
        """What mostly happens: whatever is to be executed is executed a while, and perhaps ends."""
        run = Run.objects.filter(session=self.sessions[n], status=RunStatus.RUNNING).first()
        if run is None:
            run = lifecycle.claim(self.sessions[n].id, self.worker(w))
        if run is None:
            return multiple()
        execution = Execution(run_id=run.id, claim=run.claim, batches=run.batches)
        self.write([execution], kinds, False)
        if ending is not None:
            self.finish(execution, ending)
        else:
            self.wait(execution)
        return execution

    @rule(execution=executions)
    def straggle(self, execution):
        lifecycle.straggler_ended(execution.run_id, "1", Effect.DONE)

    # Sweeps

    @rule(w=st.integers(-1, 3))
    def sweep(self, w):
        own = self.worker(w) if w >= 0 else None
        if own is not None and not self.is_alive(own):
            own = None
        self.offered.clear()
        recovery.sweep(own)
        claimable = {
            session.id
            for session in Session.objects.all()
            if self.claimable(Run.objects.filter(session=session))
        }
        assert claimable <= self.offered, "a session that could go on was not offered"
        for run in Run.objects.filter(status=RunStatus.RUNNING):
            assert self.is_alive(run.worker_id), "a dead worker kept its run"
        assert all(not liveness.is_gone(worker) for worker in Worker.objects.all())
        self.workers = [worker for worker in self.workers if self.is_alive(worker)]
        if not self.workers:
            self.start_worker()

    @rule(n=st.integers(0, 1))
    def let_a_cancel_become_overdue(self, n):
        pending = Cancellation.objects.filter(session=self.sessions[n], settled_at__isnull=True)
        late = timezone.now() - timedelta(seconds=settings.RUNS_CANCEL_TIMEOUT + 1)
        if pending.update(accepted_at=late):
            recovery.sweep()
            assert not pending.exists(), "an overdue cancel goes on"

    # What holds after every step

    @invariant()
    def all_is_well(self):
        sessions = list(Session.objects.all())
        runs = list(Run.objects.all())
        logs, calls, operations = defaultdict(list), defaultdict(list), list(Cancellation.objects.all())
        for event in RunEvent.objects.order_by("seq"):
            logs[event.run_id].append(event)
        for call in ToolCall.objects.all():
            calls[call.run_id].append(call)
        for run in runs:
            self.log_and_end_agree(run, logs[run.id], calls[run.id])
            self.books_are_true(run, logs[run.id])
        for session in sessions:
            own = [run for run in runs if run.session_id == session.id]
            self.session_is_in_order(session, own)
            self.pending_and_revision_agree(
                session, [one for one in operations if one.session_id == session.id]
            )
        self.sessions_count_the_sum(sessions, runs)
        self.cancels_win(runs, operations)
        self.nothing_is_stuck(sessions, runs)

    def log_and_end_agree(self, run, log, calls):
        assert [event.seq for event in log] == list(range(1, run.last_seq + 1)), "a hole in the log"
        assert log[0].type == EventType.RUN_QUEUED
        ends = [event for event in log if event.type in TERMINAL_TYPES]
        if run.status not in TERMINAL:
            assert not ends, "an active run has an end in its log"
            assert run.id not in self.ended, "an ended run lives again"
            return
        assert len(ends) == 1, "not one terminal event"
        assert ends[0] is log[-1], "the terminal event is not the last"
        assert ends[0].type == TERMINAL_EVENT[run.status]
        assert ends[0].data["statistics"] == statistics.of_run(run), "the end tells other numbers"
        assert not run.open_input_tokens + run.open_output_tokens, "an LLM call goes on after the end"
        assert all(call.status != ToolStatus.RUNNING for call in calls), "a tool call goes on after the end"
        whole = (row(run), [(event.id, event.type, event.data) for event in log])
        assert self.ended.setdefault(run.id, whole) == whole, "an ended run changed"

    def books_are_true(self, run, log):
        expected = self.counted[run.id]
        # Each call that is closed at the end of a run is a message of it, too, and so is the note behind it.
        note = note_id(run.id)
        closed = sum(
            event.type == EventType.TOOL_CANCELLED
            or (event.type == EventType.MESSAGE_COMPLETED and event.data["message"] == note)
            for event in log
        )
        assert run.message_count == expected["message_count"] + closed
        assert (run.llm_calls, run.tool_calls) == (expected["llm_calls"], expected["tool_calls"])
        used = statistics.of_run(run)
        assert (used["input_tokens"] or 0) == expected["open_input_tokens"] + expected["input_tokens"]
        assert (used["output_tokens"] or 0) == expected["open_output_tokens"] + expected["output_tokens"]

    def session_is_in_order(self, session, runs):
        positions = sorted(run.position for run in runs if run.position is not None)
        assert positions == list(range(1, session.last_position + 1))
        occupying = [run for run in runs if run.status in OCCUPYING]
        assert len(occupying) <= 1
        # What was cancelled in the queue meanwhile stands behind it; what began does not.
        began = [run.position for run in runs if run.started_at is not None]
        assert all(run.position == max(began) for run in occupying), "a later turn began beside another"
        for run in runs:
            if run.resolution == Resolution.RESUMED:
                assert sum(other.resumes_id == run.id for other in runs) == 1, "resumed more than once"
            if run.resolution is None:
                assert not any(run.id in (other.resumes_id, other.retries_id) for other in runs)

    def sessions_count_the_sum(self, sessions, runs):
        totals = statistics.of_sessions([session.id for session in sessions])
        for session in sessions:
            for name in ("message_count", "llm_calls", "tool_calls", "duration_ms"):
                expected = sum(getattr(run, name) for run in runs if run.session_id == session.id)
                assert totals[session.id][name] == expected

    def pending_and_revision_agree(self, session, operations):
        pending = [operation for operation in operations if operation.settled_at is None]
        assert len(pending) <= 1
        assert session.cancellation_revision % 2 == len(pending), "the revision missed a change"
        assert session.cancellation_revision >= self.revisions[session.id], "the revision went back"
        self.revisions[session.id] = session.cancellation_revision

    def cancels_win(self, runs, operations):
        by_id = {run.id: run for run in runs}
        for run in runs:
            if run.cancel_requested_at is not None:
                first = self.asked.setdefault(run.id, run.cancel_requested_at)
                assert run.cancel_requested_at == first, "the first acceptance does not stay"
                assert run.status in (RunStatus.RUNNING, RunStatus.CANCELLED), "an accepted cancel lost"
            else:
                assert run.id not in self.asked, "an accepted cancel was forgotten"
            if run.status == RunStatus.CANCELLED:
                assert any(one.run_id == run.id for one in operations), "nobody cancelled a cancelled run"
        for operation in operations:
            run = by_id[operation.run_id]
            if operation.settled_at is None:
                assert run.status == RunStatus.RUNNING, "a cancel waits for what does not run"
                continue
            outcome = operation.outcome, operation.settled_at
            assert self.settled.setdefault(operation.id, outcome) == outcome, "a settled cancel changed"
            if operation.outcome in (CancelOutcome.CANCELLED, CancelOutcome.RECONCILED):
                assert run.status == RunStatus.CANCELLED

    def nothing_is_stuck(self, sessions, runs):
        living = next((worker for worker in self.workers if self.is_alive(worker)), None)
        if living is None:
            return
        for session in sessions:
            expected = self.claimable([run for run in runs if run.session_id == session.id])
            if expected is not None:
                with undone():
                    claimed = lifecycle.claim(session.id, living)
                    assert claimed is not None, "a session is stuck"
                    assert claimed.id == expected

    # What is asked above

    def worker(self, w):
        return self.workers[w % len(self.workers)]

    def is_alive(self, worker_id):
        found = Worker.objects.filter(id=worker_id).first()
        return found is not None and found.pid != NO_PROCESS

    def owns(self, execution):
        return Run.objects.filter(
            id=execution.run_id, claim=execution.claim, status=RunStatus.RUNNING
        ).exists()

    def is_asked(self, run_id):
        return Run.objects.filter(id=run_id, cancel_requested_at__isnull=False).exists()

    def expected(self, owns, asked):
        if not owns:
            return Result.FENCED
        return Result.CANCEL_FIRST if asked else Result.DONE

    def claimable(self, runs):
        """The id of the run of a session that a claim has to take now; None if there is none."""
        occupying = [run for run in runs if run.status in OCCUPYING]
        if occupying:
            (run,) = occupying
            return run.id if run.status == RunStatus.WAITING and run.answers is not None else None
        left = [run for run in runs if run.position is not None]
        latest = max(left, key=lambda run: run.position, default=None)
        if latest and latest.status == RunStatus.INTERRUPTED and latest.resolution is None:
            return None
        queued = [run for run in runs if run.status == RunStatus.QUEUED]
        heads = [run for run in queued if run.resumes_id or run.retries_id]
        if heads:
            return max(heads, key=lambda run: run.created_at).id
        return min(queued, key=lambda run: run.created_at).id if queued else None

    def part(self, execution, kinds):
        """What an execution adds to a batch."""
        entries, counts = [], Counter()
        for kind in kinds:
            entry, counted = WRITTEN[kind]
            entries += entry
            counts.update(counted)
        encoded = [(type, events.encode(data)) for type, data in entries]
        return events._Part(execution, [], counts, [], encoded)


_CALLS = [{"id": "1", "name": "mark", "args": {}}, {"id": "2", "name": "mark", "args": {}}]
# By kind, what an execution may write: events, and what they count.
WRITTEN = {
    "text": ([(EventType.MESSAGE_DELTA, {"message": "m", "text": "word"})], {"open_output_tokens": 1}),
    "ask": (
        [(EventType.MESSAGE_COMPLETED, {"message": "m", "text": "", "tool_calls": _CALLS})],
        {"message_count": 1},
    ),
    "start": (
        [(EventType.TOOL_STARTED, {"tool_call": "1", "message": "m", "name": "mark", "args": {}})],
        {"tool_calls": 1},
    ),
    "end": ([(EventType.TOOL_COMPLETED, {"tool_call": "1", "result": "done"})], {"message_count": 1}),
    "fail": ([(EventType.TOOL_FAILED, {"tool_call": "1", "error": "broke"})], {"message_count": 1}),
    "open": ([], {"llm_calls": 1, "open_input_tokens": 7}),
    "count": ([], {"input_tokens": 5, "output_tokens": 3}),
}


def row(run):
    """All columns of a run but those that may change after its end."""
    return {
        field.attname: getattr(run, field.attname)
        for field in Run._meta.concrete_fields
        if field.attname not in AFTER_THE_END
    }


@contextmanager
def undone():
    """Whatever is done inside is taken back."""
    savepoint = transaction.savepoint()
    try:
        yield
    finally:
        transaction.savepoint_rollback(savepoint)
