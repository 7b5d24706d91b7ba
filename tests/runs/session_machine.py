"""A machine that lets runs live in any order of events that the database can see.

One thread, one transaction that is rolled back at the end: what interleaves are the steps of workers, users,
operators and sweeps. What two transactions do to each other at the same moment is not seen here. Single steps
meet each other by chance; where a fault takes a chain of them, one rule does the chain. What has to hold
after each step is in ``invariants``.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from django.conf import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import SearchStrategy

from runs.errors import IdempotencyConflict, Invalid, NotInterrupted, NotWaiting, QueueFull, RunActive
from runs.foundation.host import this_host
from runs.lifecycle import admission, cancel_requests, endings, liveness, questions, queue
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.log import tool_calls, writer
from runs.models import Cancellation, Run, Worker
from runs.recovery import reconciliation, sweep
from runs.states import (
    ACTIVE,
    OCCUPYING,
    TERMINAL,
    Effect,
    ErrorCode,
    EventType,
    InterruptReason,
    Resolution,
    RunStatus,
    ToolStatus,
)
from runs.wire import encoding
from runs.worker import graph_input
from tests.runs import invariants
from tests.runs.invariants import Truths, claimable, undecided, undone
from tests.runs.servers import NO_PROCESS

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Step: TypeAlias = tuple[str, dict[str, Any]]  # its name, and what it is given

SESSION = st.sampled_from([0, 0, 0, 1])  # most of it happens in one of the two
WORKER = st.integers(0, 3)
ANY = st.integers(0, 11)  # one of those there are
KINDS = st.lists(
    st.sampled_from(["text", "ask", "start", "end", "fail", "open", "count", "guess", "first", "later"]),
    min_size=1,
    max_size=4,
)
ENDINGS = [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED]
# What an execution does, whether or not the run is still its own.
ACTS = ["write", "wait", *ENDINGS]
# How the log's commit may go: its reply arrives, or is lost, or nothing of it has come about.
COMMITS = st.sampled_from(["well", "well", "reply lost", "lost"])
LOSSES = ["dies", "removed", "leaves"]
DECISIONS = st.sampled_from(list(Resolution))
MULTITASK = st.sampled_from(["reject", "enqueue", "enqueue", "interrupt"])


class Execution(SimpleNamespace):
    """What an execution knows: ``run_id``, ``claim``, ``worker``, ``batches``, and whether it has ``begun``.

    It may be a zombie.
    """

    gated_tools = invariants.GATED


# By name, how often a step is taken, and what it is given. All are one rule to Hypothesis, which would leave
# out half of its rules in each life.
STEPS: dict[str, tuple[int, SearchStrategy[dict[str, Any]]]] = {}


def step(weight: int, **arguments: SearchStrategy[Any]) -> Callable[[F], F]:
    """One of the things that may happen next."""

    def register(function: F) -> F:
        STEPS[function.__name__] = weight, st.fixed_dictionaries(arguments)
        return function

    return register


def _arguments(name: str) -> SearchStrategy[Step]:
    return st.tuples(st.just(name), STEPS[name][1])


class SessionMachine(Truths, RuleBasedStateMachine):
    """Two sessions, workers that come and go, and everybody who may do something to a run."""

    lives = 0  # begun so far, of all

    @initialize()
    def begin(self) -> None:
        """Everything, and one run that is executed."""
        SessionMachine.lives += 1
        self.set_up()
        self.workers: list[UUID] = []
        self.executions: list[Execution] = []
        self.keys: dict[tuple[UUID, str], tuple[UUID, str]] = {}
        self.start_worker()
        self.start_worker()
        self.look()
        self.admit(0, "reject", None, "one")
        self.look()
        self.claim(0, 0)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.tear_down()

    @invariant()
    def all_is_well(self) -> None:
        self.look()

    # Users

    @step(
        3,
        n=SESSION,
        multitask=MULTITASK,
        key=st.sampled_from([None, None, "a", "b"]),
        text=st.sampled_from("xy"),
    )
    def admit(self, n: int, multitask: str, key: str | None, text: str) -> None:
        session = self.sessions[n]
        before = [run for run in self.of(n) if run.status in ACTIVE]
        queued = sum(run.status == RunStatus.QUEUED for run in before)
        turn = admission.Turn.checked(
            text, multitask=multitask, on_disconnect="continue", stream_modes=(), key=key
        )
        known = self.keys.get((session, key)) if key else None
        try:
            run = admission.admit(session, self.user, turn)
        except IdempotencyConflict:
            assert known is not None, "a new key was taken for an old one"
            assert known[1] != turn.digest, "the same request was refused"
            return
        except RunActive:
            assert known is None, "a key was forgotten"
            assert before, "a turn was refused for no reason"
            assert multitask == "reject", "a turn was refused for no reason"
            return
        except QueueFull:
            assert queued >= settings.RUNS_QUEUE_LIMIT, "a turn was refused for no reason"
            return
        if known is not None:
            assert (run.id, turn.digest) == known, "the same key gave another run"
            return
        assert multitask != "reject" or not before, "a turn was taken beside an active one"
        assert multitask == "interrupt" or queued < settings.RUNS_QUEUE_LIMIT, "the queue has no limit"
        if key:
            self.keys[session, key] = run.id, turn.digest
        self.counted[run.id]["message_count"] = 1
        waiting = Run.objects.filter(session=session, status=RunStatus.INTERRUPTED, resolution=None)
        assert not waiting.exists(), "a new message decided nothing"
        if multitask == "interrupt":
            for one in Run.objects.filter(id__in=[run.id for run in before]):
                assert one.cancel_requested_at is not None, "interrupt left a run alone"

    @step(2, n=SESSION, i=ANY, whole=st.sampled_from([True, True, True, False]))
    def answer(self, n: int, i: int, whole: bool) -> None:
        run = self.pick([run for run in self.of(n) if run.status == RunStatus.WAITING] or self.of(n), i)
        if run is None:
            return
        may = run.status == RunStatus.WAITING and run.answers is None
        try:
            questions.answer(run.id, {"q": "yes"} if whole else {}, self.user)
        except NotWaiting:
            assert not may, "an answer was refused for no reason"
        except Invalid:
            assert not whole, "an answer was refused for no reason"
        else:
            assert may, "what does not wait was answered"
            assert whole, "half an answer was taken"

    @step(5, n=SESSION, i=ANY, how=DECISIONS)
    def decide(self, n: int, i: int, how: Resolution) -> None:
        """About the one that waits for it, about the latest, or about any."""
        waiting = undecided(self.of(n))
        latest = [run for run in self.of(n) if run.position is not None]
        run = self.pick([*waiting, *sorted(latest, key=place)[-1:], *self.of(n)], i)
        if run is None:
            return
        if waiting:
            may = run.id == waiting[0].id
        else:
            is_latest = run.status in TERMINAL and run.position == max(map(place, latest))
            may = how == Resolution.RETRIED and is_latest
            may = may and run.resolution in (None, Resolution.DISMISSED)
        try:
            if how == Resolution.RESUMED:
                new = admission.resume(run, self.user)
            elif how == Resolution.RETRIED:
                new = admission.retry(run, self.user, None)
            else:
                new = None
                admission.dismiss(run)
        except NotInterrupted:
            assert not may, "a decision was refused for no reason"
            return
        assert may, f"{run.status} {run.resolution} was {how}"
        if new is not None:
            self.counted[new.id]["message_count"] = int(how == Resolution.RETRIED)
            queued = Run.objects.filter(session=new.session_id, status=RunStatus.QUEUED)
            assert new.id == queued.order_by("queue_place").values_list("id", flat=True).first(), (
                "what goes on is not the first in line"
            )

    # Cancels

    @step(3, n=SESSION, i=ANY, of=st.sampled_from([OCCUPYING, (RunStatus.QUEUED,), TERMINAL]))
    def cancel(self, n: int, i: int, of: Collection[str]) -> None:
        run = self.pick([run for run in self.of(n) if run.status in of], i)
        if run is None:
            return
        operation = cancel_requests.request_cancel(run.id, **self.who("user"))
        after = Run.objects.get(id=run.id)
        if run.status in TERMINAL and run.status != RunStatus.CANCELLED:
            assert operation is None, "a cancel of what had ended was recorded"
            return
        assert operation is not None, "a cancel was not recorded"
        assert operation.run_id == run.id, "a cancel joined that of another run"
        if run.status != RunStatus.RUNNING or run.worker_id not in self.alive:
            assert after.status == RunStatus.CANCELLED, "what nobody executes was left for somebody to stop"
            assert operation.settled_at is not None, "a cancel waits for nobody"
        else:
            assert after.status == RunStatus.RUNNING, "a run ended under its execution"
            assert operation.settled_at is None, "a cancel settled before its run ended"
            pending = [one for one in self.cancels if one.run_id == run.id and one.settled_at is None]
            assert not pending or operation.id == pending[0].id, "a second cancel did not join the first"

    @step(1, n=SESSION)
    def cancel_session(self, n: int) -> None:
        active = [run for run in self.of(n) if run.status in ACTIVE]
        operation = cancel_requests.request_session_cancel(self.sessions[n], **self.who("user"))
        for run in Run.objects.filter(id__in=[run.id for run in active]):
            assert run.cancel_requested_at is not None, f"{run.status} survived the session's cancel"
        first = [run for run in active if run.status in OCCUPYING] or sorted(active, key=line)
        if first:
            assert operation is not None, "a cancel was not recorded"
            assert operation.run_id == first[0].id, "not what ends the active run was told"

    @step(1, n=SESSION, i=ANY)
    def force_cancel(self, n: int, i: int) -> None:
        run = self.pick([run for run in self.of(n) if run.status in ACTIVE] or self.of(n), i)
        if run is None:
            return
        operation = cancel_requests.force_cancel(run.id, **self.who("operator"))
        after = Run.objects.get(id=run.id)
        if run.status in TERMINAL:
            assert (operation is not None) == (run.status == RunStatus.CANCELLED), "an end was rewritten"
            return
        assert after.status == RunStatus.CANCELLED, "a force-cancel ended nothing"
        assert operation is not None, "a cancel was not recorded"
        assert operation.settled_at is not None, "a cancel waits for nobody"
        if run.status == RunStatus.RUNNING:
            assert run.id in self.fenced, "the saver of what was taken away is not fenced"

    # Workers

    @step(1)
    def start_worker(self) -> None:
        if len(self.workers) == 4:
            return
        host, boot = this_host()
        pid = os.getpid()
        started = liveness.process_started(pid)
        row = Worker.objects.create(host=host, boot=boot, pid=pid, pid_started=started, version="test")
        self.workers.append(row.id)

    @step(1, w=WORKER)
    def kill_worker(self, w: int) -> None:
        """Its executions stay behind as zombies, which go on trying."""
        Worker.objects.filter(id=self.worker(w)).update(pid=NO_PROCESS, pid_started="1")

    @step(1, w=WORKER)
    def remove_worker(self, w: int) -> None:
        """As a sweeper that comes no further than that, or one whose worker claims in between."""
        if len(self.workers) > 1:
            Worker.objects.filter(id=self.worker(w)).delete()

    @step(1, w=WORKER)
    def silence_worker(self, w: int) -> None:
        """On SQLite that is one process, which may be slow and is not dead."""
        Worker.objects.filter(id=self.worker(w)).update(heartbeat_at=self.clock - timedelta(days=1))

    @step(3, n=SESSION, w=WORKER)
    def claim(self, n: int, w: int) -> None:
        self.take(n, w)

    def take(self, n: int, w: int) -> Execution | None:
        """The execution of what is first in line, by this worker; None if there is nothing to do."""
        expected, worker = claimable(self.of(n)), self.worker(w)
        run = queue.claim(self.sessions[n], worker)
        is_known = Worker.objects.filter(id=worker).exists()
        if run is None:
            assert expected is None or not is_known, "what is first in line could not be claimed"
            return None
        assert is_known, "a worker that is taken for dead was given a run"
        assert run.id == expected, "not the first in line was claimed"
        self.offered.discard(self.sessions[n])
        execution = Execution(
            run_id=run.id, claim=run.claim, worker=run.worker_id, batches=run.batches, begun=False
        )
        self.executions.append(execution)
        return execution

    def begin_turn(self, execution: Execution) -> None:
        """What an execution does first, if it lives so long: it brings the turns before it into order."""
        if execution.begun or not self.owns(execution):
            return
        execution.begun = True
        run = Run.objects.get(id=execution.run_id)
        turn = graph_input.load(run)
        history = self.histories[run.session_id]
        if run.message_id in history:
            assert not turn.unrepaired, "a turn is under way on a history that is not in order"
            return
        history |= {said.user.id: True for said in turn.earlier}
        for message in turn.dropped:
            history.pop(message, None)
        endings.mark_repaired(turn.unrepaired)
        first = Run.objects.filter(session=run.session_id, message_id=run.message_id).earliest("position")
        ended = Run.objects.filter(session=run.session_id, status__in=TERMINAL, position__lt=first.position)
        said = {one.message_id: True for one in ended if one.resolution != Resolution.RETRIED}
        assert history == said, "the history is not what was said, or cannot be sent"
        history[run.message_id] = False

    # Executions

    @step(2, i=ANY, j=ANY, kinds=KINDS, commit=COMMITS)
    def write(self, i: int, j: int, kinds: Sequence[str], commit: str) -> None:
        """One or two at once, in one commit."""
        one, other = self.pick(self.executions, -i), self.pick(self.executions, -j)
        assert one is not None
        assert other is not None
        self.write_together([one, other] if one.run_id != other.run_id else [one], kinds, commit)

    def write_together(self, writing: list[Execution], kinds: Sequence[str], commit: str = "well") -> None:
        for execution in writing:
            self.begin_turn(execution)
        parts = [self.part(execution, kinds) for execution in writing]
        expected = [self.owns(execution) for execution in writing]
        if commit == "lost":
            with undone():
                writer._commit(parts, False)
        outcomes = writer._commit(parts, commit == "lost")
        assert [outcome == writer.Outcome.COMMITTED for outcome in outcomes] == expected, "the fence failed"
        if commit == "reply lost":
            assert writer._commit(parts, True) == outcomes, "a retry knows other outcomes"
        for part, execution, owned in zip(parts, writing, expected, strict=True):
            if owned:
                execution.batches += 1
                self.counted[execution.run_id].update(part.counts)
                if "first_token_ms" in part.counts:
                    self.first_tokens.setdefault(execution.run_id, part.counts["first_token_ms"])
                if part.encoded:
                    self.hear(
                        execution.run_id, self.runs[execution.run_id].position, part.first, part.encoded
                    )

    @step(3, i=ANY, what=st.sampled_from(ACTS), kinds=KINDS, repaired=st.booleans())
    def act(self, i: int, what: str, kinds: Sequence[str], repaired: bool) -> None:
        execution = self.pick(self.executions, -i)
        assert execution is not None
        self.do(execution, what, kinds, repaired)

    @step(3, i=ANY, what=st.sampled_from(ACTS), kinds=KINDS)
    def act_late(self, i: int, what: str, kinds: Sequence[str]) -> None:
        """A zombie whose run is executed under a later claim."""
        late = self.pick(self.overtaken(), i)
        if late is not None:
            self.do(late, what, kinds)

    @step(
        6,
        n=SESSION,
        w=WORKER,
        kinds=KINDS,
        ending=st.sampled_from(["wait", *ENDINGS]),
        repaired=st.booleans(),
    )
    def work(self, n: int, w: int, kinds: Sequence[str], ending: str, repaired: bool) -> None:
        """What mostly happens: whatever is to be executed is executed a while, and perhaps ends."""
        execution = self.execution(n, w)
        if execution is not None:
            self.write_together([execution], kinds)
            self.look()
            self.do(execution, ending, kinds, repaired)

    def do(self, execution: Execution, what: str, kinds: Sequence[str] = (), repaired: bool = False) -> bool:
        """Returns whether the engine took it."""
        self.begin_turn(execution)
        owns, asked = self.owns(execution), self.runs[execution.run_id].cancel_requested_at is not None
        if what == "write":
            self.write_together([execution], kinds)
            return owns
        if what == "wait":
            done = questions.wait(execution.run_id, execution.claim, [{"id": "q", "value": "?"}])
            if done is Outcome.DONE:
                assert Run.objects.get(id=execution.run_id).answers is None, "an old answer to a new question"
        elif what == RunStatus.CANCELLED and not asked:
            return False  # an execution ends cancelled only when it was asked to
        else:
            done = endings.finish(
                execution.run_id,
                execution.claim,
                RunStatus(what),
                error=Failure(ErrorCode.PROVIDER, "It broke.") if what == RunStatus.FAILED else None,
                reason=InterruptReason.SHUTDOWN if what == RunStatus.INTERRUPTED else None,
                repaired=repaired and what != RunStatus.INTERRUPTED,
            )
        stopped = asked and what != RunStatus.CANCELLED
        if not owns:
            assert done is Outcome.FENCED, "what lost its run changed it"
        else:
            assert done is (Outcome.CANCEL_FIRST if stopped else Outcome.DONE), "an accepted cancel lost"
        if done is Outcome.DONE:
            self.left.add(execution.run_id)
        if done is Outcome.DONE and repaired and what not in ("wait", RunStatus.INTERRUPTED):
            run = self.runs[execution.run_id]
            self.histories[run.session_id][run.message_id] = True
        return done is Outcome.DONE

    @step(1, i=ANY, effect=st.sampled_from([Effect.DONE, Effect.NONE]))
    def straggle(self, i: int, effect: Effect) -> None:
        """What was given up on ends; or nothing was given up on."""
        known = [call for calls in self.calls.values() for call in calls]
        call = self.pick([call for call in known if call.effect == Effect.UNKNOWN] or known, i)
        if call is not None:
            tool_calls.straggler_ended(call.run_id, call.call_id, Effect.DONE)
            if call.effect == Effect.UNKNOWN and call.status != ToolStatus.RUNNING:
                self.straggled.add((call.run_id, call.call_id))

    # Sweeps

    @step(2, w=st.integers(-1, 3))
    def sweep(self, w: int) -> None:
        own = self.worker(w) if w >= 0 else None
        self.offered.clear()
        sweep.sweep(own if own in self.alive else None)
        assert all(not liveness.is_gone(worker) for worker in Worker.objects.all()), (
            "the dead are there still"
        )
        assert self.alive == set(Worker.objects.values_list("id", flat=True)), "a living worker was removed"
        for run in Run.objects.filter(status=RunStatus.RUNNING):
            assert run.worker_id in self.alive, "a dead worker kept its run"
        for before in self.cancels:
            run = self.runs[before.run_id]
            if before.settled_at is None and run.worker_id in self.alive:
                now = Cancellation.objects.get(id=before.id)
                is_overdue = before.accepted_at < self.clock - timedelta(hours=1)
                assert (now.settled_at is not None) == is_overdue, (
                    "a cancel was not settled when it is overdue"
                )
        self.workers = [worker for worker in self.workers if worker in self.alive]
        if not self.workers:
            self.start_worker()

    @step(1, i=ANY)
    def let_a_cancel_become_overdue(self, i: int) -> None:
        pending = self.pick(self.pending(), i)
        if pending is None:
            return
        Cancellation.objects.filter(id=pending.id).update(accepted_at=pending.accepted_at - timedelta(days=1))
        sweep.sweep()
        assert Cancellation.objects.get(id=pending.id).settled_at is not None, "an overdue cancel goes on"

    @step(1, i=ANY)
    def time_out_late(self, i: int) -> None:
        """A sweeper that found a cancel overdue, and was held up."""
        found = self.pick([one for one in self.cancels if one.settled_at is not None], -i)
        if found is not None:
            assert not cancel_requests.time_out_cancellation(found.id), "a cancel was settled for another"

    @step(2, i=ANY)
    def reclaim_late(self, i: int) -> None:
        """A sweeper that found a run with a dead worker, and was held up."""
        late = self.pick(self.overtaken() or self.executions, -i)
        if late is not None:
            self.reclaim(late)

    def reclaim(self, execution: Execution) -> None:
        run = self.runs[execution.run_id]
        if execution.worker in self.alive and self.owns(execution):
            return  # nobody takes that for lost
        taken = endings.interrupt(run.id, execution.worker, InterruptReason.WORKER_LOST)
        mine = run.status == RunStatus.RUNNING and run.worker_id == execution.worker
        assert taken is mine, "a run was taken from another worker"

    @step(1, n=SESSION, i=ANY)
    def reconcile(self, n: int, i: int) -> None:
        run = self.pick(self.of(n), i)
        if run is not None:
            reconciliation.reconcile(Run.objects.select_related("session", "worker").get(id=run.id))
            after = Run.objects.get(id=run.id)
            if run.worker_id in self.alive or run.status in (RunStatus.QUEUED, RunStatus.WAITING):
                assert after.status == run.status, "reconciling ended what goes on"

    # Chains

    @step(
        4,
        n=SESSION,
        w=WORKER,
        v=WORKER,
        kinds=KINDS,
        swept=st.booleans(),
        what=st.lists(st.sampled_from([*ACTS, "reclaimed"]), max_size=2),
    )
    def answer_and_overtake(
        self, n: int, w: int, v: int, kinds: Sequence[str], swept: bool, what: list[str]
    ) -> None:
        """A question, its answers and the next claim, while the execution that asked has not noticed."""
        execution = self.execution(n, w)
        if execution is None or not self.do(execution, "wait"):
            return
        self.look()
        questions.answer(execution.run_id, {"q": "yes"}, self.user)
        self.look()
        self.answer(n, 0, True)
        if swept:
            self.sweep(-1)
            self.look()
        if self.take(n, v) is None:
            return
        self.look()
        for late in what:
            if late == "reclaimed":
                self.reclaim(execution)
            else:
                self.do(execution, late, kinds)
            self.look()

    @step(
        5,
        n=SESSION,
        w=WORKER,
        kinds=KINDS,
        then=st.lists(
            st.sampled_from([*ACTS, "again", "overdue", "late", "forced", *LOSSES]), min_size=1, max_size=4
        ),
    )
    def cancel_and_then(self, n: int, w: int, kinds: Sequence[str], then: list[str]) -> None:
        """A cancel is accepted, and the execution goes on as if it had not heard, or is lost."""
        execution = self.execution(n, w)
        if execution is None:
            return
        self.cancel_run(execution)
        for what in then:
            self.look()
            if what == "again":
                self.cancel_run(execution)
            elif what == "overdue":
                for i in range(len(self.pending())):
                    self.let_a_cancel_become_overdue(i)
            elif what == "late":
                self.time_out_late(0)
            elif what == "forced":
                cancel_requests.force_cancel(execution.run_id, **self.who("operator"))
            elif what in LOSSES:
                self.lose(execution, what)
            else:
                self.do(execution, what, kinds)

    @step(
        4,
        n=SESSION,
        w=WORKER,
        how=st.sampled_from(LOSSES),
        queued=st.sampled_from(["nobody", "stays", "is cancelled"]),
        i=ANY,
        decisions=st.lists(DECISIONS, max_size=2),
    )
    def lose_and_decide(
        self, n: int, w: int, how: str, queued: str, i: int, decisions: list[Resolution]
    ) -> None:
        """An execution is lost; one that was queued behind it may be cancelled before somebody decides, and
        what was decided may be decided again."""
        execution = self.execution(n, w)
        if execution is None:
            return
        if queued != "nobody":
            self.admit(n, "enqueue", None, "x")
            self.look()
        self.lose(execution, how)
        self.look()
        if queued == "is cancelled":
            self.cancel(n, i, (RunStatus.QUEUED,))
            self.look()
        for decision in decisions:
            self.decide(n, 0, decision)
            self.look()

    @step(3, n=SESSION, w=WORKER, how=st.sampled_from(LOSSES), ending=st.sampled_from(ENDINGS))
    def go_on_and_retry(self, n: int, w: int, how: str, ending: RunStatus) -> None:
        """A turn of two runs is taken back as a whole."""
        execution = self.execution(n, w)
        if execution is None:
            return
        self.lose(execution, how)
        self.look()
        self.decide(n, 0, Resolution.RESUMED)
        self.look()
        following = self.take(n, w)
        self.look()
        if following is not None:
            self.do(following, ending, repaired=True)
            self.look()
            self.decide(n, 0, Resolution.RETRIED)
            self.look()
            if (anew := self.take(n, w)) is not None:
                self.look()
                self.do(anew, "write")

    def lose(self, execution: Execution, how: str) -> None:
        if how == "leaves":
            self.do(execution, RunStatus.INTERRUPTED)
        elif execution.worker in self.workers and len(self.workers) > 1:
            lose = self.kill_worker if how == "dies" else self.remove_worker
            lose(self.workers.index(execution.worker))
            self.look()
            self.sweep(-1)

    @rule(step=st.deferred(lambda: ANY_STEP))
    def happen(self, step: Step) -> None:
        name, arguments = step
        getattr(self, name)(**arguments)

    # What is asked above

    def of(self, n: int) -> list[Run]:
        """The runs of a session, as of the last look."""
        return [run for run in self.runs.values() if run.session_id == self.sessions[n]]

    def pick(self, options: Sequence[T], i: int) -> T | None:
        return options[i % len(options)] if options else None

    def worker(self, w: int) -> UUID:
        return self.workers[w % len(self.workers)]

    def who(self, source: str) -> dict[str, Any]:
        return {"source": source, "reason": "", "requested_by": self.user}

    def owns(self, execution: Execution) -> bool:
        run = self.runs[execution.run_id]
        return run.status == RunStatus.RUNNING and run.claim == execution.claim

    def overtaken(self) -> list[Execution]:
        """Executions whose run is executed by another one now."""
        return [
            one
            for one in self.executions
            if self.runs[one.run_id].status == RunStatus.RUNNING and not self.owns(one)
        ]

    def execution(self, n: int, w: int) -> Execution | None:
        """The one that executes a run of the session now, or begins to; None if something is in its way."""
        own = [one for one in self.executions if self.owns(one)]
        found = [one for one in own if self.runs[one.run_id].session_id == self.sessions[n]]
        if found:
            return found[0]
        if not undecided(self.of(n)) and all(run.status in TERMINAL for run in self.of(n)):
            self.admit(n, "reject", None, "x")
            self.look()
        begun = self.take(n, w)
        self.look()
        return begun

    def pending(self) -> list[Cancellation]:
        return [one for one in self.cancels if one.settled_at is None]

    def cancel_run(self, execution: Execution) -> None:
        runs = [run for run in self.of(0) + self.of(1) if run.id == execution.run_id]
        n = self.sessions.index(runs[0].session_id)
        own = [run for run in self.of(n) if run.status == runs[0].status]
        self.cancel(n, [run.id for run in own].index(runs[0].id), (runs[0].status,))

    def part(self, execution: Execution, kinds: Sequence[str]) -> writer._Part:
        """What an execution adds to a batch."""
        entries: list[tuple[str, dict[str, Any]]] = []
        counts: Counter[str] = Counter()
        for kind in kinds:
            entry, counted = WRITTEN[kind]
            entries += entry
            counts.update(counted)
        encoded = [(type, encoding.encode(data)) for type, data in entries]
        return writer._Part(execution, entries, counts, [], [], encoded)  # type: ignore[arg-type] # for its log


# Hypothesis begins with a life of nothing but the first.
_WEIGHTED = [name for name in sorted(STEPS, key=lambda name: -STEPS[name][0]) for _ in range(STEPS[name][0])]
ANY_STEP: SearchStrategy[Step] = st.sampled_from(_WEIGHTED).flatmap(_arguments)


def place(run: Run) -> int:
    return run.position or 0


def line(run: Run) -> int:
    return run.queue_place


_CALLS = [{"id": "1", "name": "mark", "args": {}}, {"id": "2", "name": "by hand", "args": {}}]
# By kind, what an execution may write: events, and what they count.
WRITTEN: dict[str, tuple[list[tuple[str, dict[str, Any]]], dict[str, int]]] = {
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
    "guess": ([], {"output_tokens": 2, "tokens_estimated": 1}),
    "first": ([], {"first_token_ms": 40}),
    "later": ([], {"first_token_ms": 90}),
}
