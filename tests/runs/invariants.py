"""What holds of runs at every moment, whatever happened to them; for the machine in ``session_machine``.

The database is read after each step and compared with what it was and with what was done. Time stands still
during a step, and moves on by a second after it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID, uuid4

from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from runs import this_process
from runs.lifecycle import queue
from runs.live import bus
from runs.live.bus import Message
from runs.log import transcript
from runs.models import Cancellation, Run, RunEvent, Session, ToolCall, Worker
from runs.states import (
    OCCUPYING,
    TERMINAL,
    TERMINAL_EVENT,
    CancelOutcome,
    Effect,
    EventType,
    Resolution,
    RunStatus,
    ToolStatus,
)
from runs.wire import representations, statistics
from tests.runs.servers import NO_PROCESS

TERMINAL_TYPES = frozenset(TERMINAL_EVENT.values())
# What may still change of a run once it has ended: what became of it, and what is known of its history.
AFTER_THE_END = {"resolution", "repaired", "worker_id"}


class Truths:
    """Two sessions in one transaction that is rolled back at the end, and what was seen of them so far."""

    def set_up(self) -> None:
        self.world = ExitStack()
        self.world.enter_context(transaction.atomic())
        self.world.callback(transaction.set_rollback, True)
        self.world.enter_context(override_settings(RUNS_QUEUE_LIMIT=3, DISPATCH="inprocess"))
        self.clock = timezone.now()
        self.world.enter_context(patch.object(timezone, "now", lambda: self.clock))
        self.world.enter_context(patch.object(bus, "publish", self.tell))
        self.fenced: set[UUID] = set()
        engine = SimpleNamespace(offer=self.offer, fence=self.fenced.add, watch=None)
        self.world.enter_context(patch.object(this_process, "engine", engine))
        self.written = True  # since the last look
        self.world.enter_context(connection.execute_wrapper(self.note_writing))
        self.depth = len(connection.savepoint_ids)

        self.user = get_user_model().objects.create(username=f"user {uuid4()}")
        self.sessions = [Session.objects.create(owner=self.user, agent="assistant").id for _ in range(2)]
        # By run: what was counted, and what of it was told, from what was committed.
        self.counted: defaultdict[UUID, Counter[str]] = defaultdict(Counter)
        self.heard: Counter[UUID] = Counter()
        self.first_tokens: dict[UUID, int] = {}
        self.runs: dict[UUID, Run] = {}  # as of the last look, and so are the following
        self.looks: dict[UUID, tuple[tuple[Any, ...], datetime]] = {}  # by session, what a client would show
        self.tried: dict[UUID, tuple[Any, ...]] = {}  # by session, as it was when a claim was tried
        self.revisions: Counter[str] = Counter()  # as told
        self.ended: dict[UUID, tuple[Any, ...]] = {}  # by run, its row, log and calls as they were at its end
        self.asked: dict[UUID, datetime] = {}  # by run, when its first cancel was accepted
        self.operations: dict[UUID, Cancellation] = {}
        self.left: set[UUID] = set()  # runs that their executions ended, or left to wait, since the last look
        self.straggled: set[tuple[UUID, str]] = set()
        self.offered: set[UUID] = set()
        self.changed: set[str] = set()  # groups that were told to read again since the last look
        self.signals: set[tuple[UUID, str]] = set()  # what workers were told of runs
        # By session, the turns that its checkpoint holds, by their message; True when in a sendable form.
        self.histories: dict[UUID, dict[str, bool]] = {session: {} for session in self.sessions}

    def tear_down(self) -> None:
        self.world.close()

    # What the engine tells

    def offer(self, session_id: UUID) -> bool:
        assert len(connection.savepoint_ids) == self.depth, "a session was offered before the commit"
        self.offered.add(session_id)
        return True

    def tell(self, group: str, message: Message) -> None:
        assert len(connection.savepoint_ids) == self.depth, "something was told before the commit"
        match message["kind"]:
            case "events":
                self.hear(UUID(message["run"]), message["position"], message["first"], message["events"])
            case "cancellation":
                self.revisions[group] += 1
                assert message["revision"] == self.revisions[group], "a change of pending was not told"
                assert message["pending"] is (message["revision"] % 2 == 1), "pending was told wrongly"
            case "changed":
                self.changed.add(group)
            case "cancel" | "fenced" as kind:
                self.signals.add((UUID(message["run"]), kind))

    def hear(self, run_id: UUID, position: int | None, first: int, told: Sequence[tuple[str, Any]]) -> None:
        """``told``: (type, anything) of each event."""
        assert position == Run.objects.get(id=run_id).position, "events were told out of their place"
        assert first == self.heard[run_id] + 1, "events were told twice or left out"
        found = RunEvent.objects.filter(run=run_id, seq__gte=first).order_by("seq")[: len(told)]
        assert [event.type for event in found] == [type for type, _ in told], "what is told is not in the log"
        self.heard[run_id] += len(told)

    # Looking

    def note_writing(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        self.written |= sql.startswith(("INSERT", "UPDATE", "DELETE"))
        return execute(sql, params, many, context)

    def look(self) -> None:
        """Let the transaction of the last step be committed; then everything has to be in order."""
        callbacks, connection.run_on_commit = connection.run_on_commit, []
        for _, callback, _ in callbacks:  # type: ignore[misc] # the stubs know of two
            callback()
        if not self.written:
            return
        before = self.runs
        self.read()
        for run in self.runs.values():
            log, calls = self.logs[run.id], self.calls[run.id]
            self.log_is_whole(run, log)
            self.calls_are_as_logged(run, log, calls)
            self.end_is_final(run, log, calls)
            self.books_are_true(run, log)
            self.time_is_counted(run, before.get(run.id))
        for session in self.found:
            own = [run for run in self.runs.values() if run.session_id == session.id]
            self.session_is_in_order(session, own)
            self.session_is_shown(session, own)
            self.pending_and_revision_agree(session)
            self.somebody_goes_on(session, own)
        self.sessions_count_the_sum()
        self.cancels_win()
        self.cancels_are_settled()
        self.clock += timedelta(seconds=1)
        self.changed.clear()
        self.left.clear()
        self.written = False

    def read(self) -> None:
        self.found = list(representations.with_status(Session.objects.order_by("created_at")))
        self.runs = {run.id: run for run in Run.objects.order_by("created_at")}
        self.logs: defaultdict[UUID, list[RunEvent]] = defaultdict(list)
        self.calls: defaultdict[UUID, list[ToolCall]] = defaultdict(list)
        for event in RunEvent.objects.order_by("seq"):
            self.logs[event.run_id].append(event)
        for call in ToolCall.objects.order_by("call_id"):
            self.calls[call.run_id].append(call)
        living = Worker.objects.exclude(pid=NO_PROCESS)
        if connection.vendor != "sqlite":
            living = living.filter(heartbeat_at__gt=self.clock - timedelta(hours=1))
        self.alive = set(living.values_list("id", flat=True))
        self.cancels = list(Cancellation.objects.order_by("accepted_at"))

    # The log and what goes with it

    def log_is_whole(self, run: Run, log: list[RunEvent]) -> None:
        assert [event.seq for event in log] == list(range(1, run.last_seq + 1)), "a hole in the log"
        types = Counter(event.type for event in log)
        assert log[0].type == EventType.RUN_QUEUED, "a log begins in the middle"
        assert types[EventType.RUN_STARTED] == (run.started_at is not None), "a run did not start once"
        assert self.heard[run.id] == (0 if run.position is None else run.last_seq), "something was not told"

    def calls_are_as_logged(self, run: Run, log: list[RunEvent], calls: list[ToolCall]) -> None:
        logged = fold(log)
        if run.status == RunStatus.INTERRUPTED:
            assert not any(event.type == EventType.TOOL_CANCELLED for event in log), (
                "what may be continued was closed"
            )
            for call in logged.values():
                if call.status == ToolStatus.RUNNING:
                    call.status = ToolStatus.INTERRUPTED
                    call.effect = effect_without_result(call)
        for call_id, call in logged.items():
            if (run.id, call_id) in self.straggled:
                call.effect = Effect.DONE
        assert {call.call_id: (call.status, call.effect) for call in calls} == {
            call_id: (call.status, call.effect) for call_id, call in logged.items()
        }, "the calls are not as logged"

    def end_is_final(self, run: Run, log: list[RunEvent], calls: list[ToolCall]) -> None:
        ends = [event for event in log if event.type in TERMINAL_TYPES]
        if run.status not in TERMINAL:
            assert not ends, "an active run has an end in its log"
            assert run.id not in self.ended, "an ended run lives again"
            return
        assert len(ends) == 1, "not one terminal event"
        assert ends[0] is log[-1], "the terminal event is not the last"
        assert ends[0].type == TERMINAL_EVENT[RunStatus(run.status)], "the end in the log is another"
        told = ends[0].data
        assert told["statistics"] == statistics.of_run(run), "the end tells other numbers"
        assert not run.open_input_tokens + run.open_output_tokens, "an LLM call goes on after the end"
        assert all(call.status != ToolStatus.RUNNING for call in calls), "a tool call goes on after the end"
        if run.status == RunStatus.CANCELLED:
            own = [str(operation.id) for operation in self.cancels if operation.run_id == run.id]
            assert own, "nobody cancelled a cancelled run"
            assert told.get("cancellation", {}).get("id") == own[-1], "the end names no cancel"
        if run.id not in self.ended and run.status in (RunStatus.CANCELLED, RunStatus.FAILED):
            assert run.repaired or transcript.fold(run, log).has_answer, "a turn ended without an answer"
        events = [(event.id, event.type, event.data) for event in log]
        whole = row(run), events, [(call.call_id, call.status, call.result, call.error) for call in calls]
        assert self.ended.setdefault(run.id, whole) == whole, "an ended run changed"

    # Numbers

    def books_are_true(self, run: Run, log: list[RunEvent]) -> None:
        expected = self.counted[run.id]
        # Each call that is closed at the end of a run is a message of it, too, and so are the messages that
        # the lifecycle closes, and the note behind them.
        closed = sum(event.type == EventType.TOOL_CANCELLED or is_closed_message(event) for event in log)
        used: Mapping[str, Any] = statistics.of_run(run)
        counts = {
            "message_count": expected["message_count"] + closed,
            "llm_calls": expected["llm_calls"],
            "tool_calls": expected["tool_calls"],
            "input_tokens": (expected["open_input_tokens"] + expected["input_tokens"]) or None,
            "output_tokens": (expected["open_output_tokens"] + expected["output_tokens"]) or None,
            "tokens_estimated": any(
                expected[name] for name in ("open_input_tokens", "open_output_tokens", "tokens_estimated")
            ),
            "first_token_ms": self.first_tokens.get(run.id),
        }
        assert {name: used[name] for name in counts} == counts, "the books are wrong"

    def time_is_counted(self, run: Run, before: Run | None) -> None:
        """From claim to claim's end; of a lost execution, to the last that was heard of it."""
        assert (run.claimed_at is not None) == (run.status == RunStatus.RUNNING), (
            "time goes on without a claim"
        )
        expected = before.duration_ms if before else 0
        if before and before.status == RunStatus.RUNNING and run.status != RunStatus.RUNNING:
            assert before.claimed_at is not None, "a run went on without a claim"
            worked = (self.clock if run.id in self.left else before.last_event_at) - before.claimed_at
            expected += max(round(worked.total_seconds() * 1000), 0)
        assert run.duration_ms == expected, "the time is not what it took"

    def sessions_count_the_sum(self) -> None:
        totals: Mapping[UUID, Mapping[str, Any]] = statistics.of_sessions(self.sessions)
        for session in self.sessions:
            own: list[Mapping[str, Any]] = [
                statistics.of_run(run) for run in self.runs.values() if run.session_id == session
            ]
            for name in ("message_count", "llm_calls", "tool_calls", "duration_ms"):
                assert totals[session][name] == sum(used[name] for used in own), "a session counts otherwise"
            for name in ("input_tokens", "output_tokens"):
                total = totals[session][name] or 0
                assert total == sum(used[name] or 0 for used in own), "a session counts otherwise"

    # Sessions

    def session_is_in_order(self, session: Session, runs: Sequence[Run]) -> None:
        positions = sorted(run.position for run in runs if run.position is not None)
        assert positions == list(range(1, session.last_position + 1)), "a hole among the positions"
        occupying = [run for run in runs if run.status in OCCUPYING]
        assert len(occupying) <= 1, "two turns at once"
        # What was cancelled in the queue meanwhile stands behind it; what began does not.
        began = [run.position or 0 for run in runs if run.started_at is not None]
        assert all(run.position == max(began) for run in occupying), "a later turn began beside another"
        assert len(undecided(runs)) <= 1, "two turns wait for a decision"
        for run in runs:
            if run.resolution == Resolution.RESUMED:
                assert sum(other.resumes_id == run.id for other in runs) == 1, "resumed more than once"
            if run.resolution is None:
                assert not any(run.id in (other.resumes_id, other.retries_id) for other in runs), (
                    "somebody went on without a decision"
                )
            if run.resolution == Resolution.RETRIED:
                assert sum(other.retries_id == run.id for other in runs) <= 1, "retried more than once"
                turn = [other for other in runs if other.message_id == run.message_id]
                assert all(other.resolution == Resolution.RETRIED for other in turn), (
                    "half a turn was retried"
                )

    def session_is_shown(self, session: Session, runs: Sequence[Run]) -> None:
        occupying = [run for run in runs if run.status in OCCUPYING]
        queued = [run.id for run in runs if run.status == RunStatus.QUEUED]
        if occupying:
            expected = occupying[0].status
        else:
            expected = "interrupted" if undecided(runs) else "queued" if queued else "idle"
        assert representations.session_status(session) == expected, "a session shows another status"
        look = (expected, [run.id for run in occupying], queued, session.cancellation_revision)
        known, updated_at = self.looks.get(session.id, (look, session.updated_at))
        if look != known:
            assert session.updated_at > updated_at, "a session changed and did not say so"
            assert bus.session_group(session.id) in self.changed, "a session changed and nobody was told"
        self.looks[session.id] = look, session.updated_at

    def somebody_goes_on(self, session: Session, runs: Sequence[Run]) -> None:
        """What can be claimed was offered, and is what a claim takes."""
        expected = claimable(runs)
        if expected is None:
            self.offered.discard(session.id)  # whoever took the offer up found nothing
            return
        assert session.id in self.offered, "a session that could go on was not offered"
        state = [(run.id, run.status, run.claim) for run in runs], self.alive
        if self.alive and self.tried.get(session.id) != state:
            self.tried[session.id] = state
            with undone():
                claimed = queue.claim(session.id, min(self.alive))
            assert claimed is not None, "a session is stuck"
            assert claimed.id == expected, "not the first in line would be claimed"

    # Cancels

    def pending_and_revision_agree(self, session: Any) -> None:
        pending = [one for one in self.cancels if one.session_id == session.id and one.settled_at is None]
        assert len(pending) <= 1, "two cancels at once"
        assert session.pending is bool(pending), "pending is shown wrongly"
        assert session.cancellation_revision % 2 == len(pending), "the revision missed a change"
        told = self.revisions[bus.session_group(session.id)]
        assert session.cancellation_revision >= told, "the revision went back"
        assert session.cancellation_revision == told, "a change of pending was not told"

    def cancels_win(self) -> None:
        for run in self.runs.values():
            if run.cancel_requested_at is not None:
                first = self.asked.setdefault(run.id, run.cancel_requested_at)
                assert run.cancel_requested_at == first, "the first acceptance does not stay"
                assert run.status in (RunStatus.RUNNING, RunStatus.CANCELLED), "an accepted cancel lost"
            else:
                assert run.id not in self.asked, "an accepted cancel was forgotten"

    def cancels_are_settled(self) -> None:
        known, self.operations = self.operations, {one.id: one for one in self.cancels}
        assert known.keys() <= self.operations.keys(), "a cancel was forgotten"
        for operation in self.cancels:
            run = self.runs[operation.run_id]
            if operation.settled_at is None:
                assert run.status == RunStatus.RUNNING, "a cancel waits for what does not run"
                assert (run.id, "cancel") in self.signals, "the worker was not told of a cancel"
                continue
            if operation.outcome in (CancelOutcome.CANCELLED, CancelOutcome.RECONCILED):
                assert run.status == RunStatus.CANCELLED, "a cancel says what did not happen"
            before = known.get(operation.id)
            if before is not None and before.settled_at is not None:
                assert (before.settled_at, before.outcome) == (operation.settled_at, operation.outcome), (
                    "a settled cancel changed"
                )


@contextmanager
def undone() -> Iterator[None]:
    """Whatever is done inside is taken back, and so is what waits for its commit."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def row(run: Run) -> dict[str, Any]:
    """All columns of a run but those that may change after its end."""
    return {
        field.attname: getattr(run, field.attname)
        for field in Run._meta.concrete_fields
        if field.attname not in AFTER_THE_END
    }


def is_closed_message(event: RunEvent) -> bool:
    """Whether the lifecycle has written it: the executions here complete theirs."""
    return event.type == EventType.MESSAGE_COMPLETED and event.data.get("status") == "interrupted"


def undecided(runs: Sequence[Run]) -> list[Run]:
    """Those that wait for a decision."""
    return [run for run in runs if run.status == RunStatus.INTERRUPTED and run.resolution is None]


def claimable(runs: Sequence[Run]) -> UUID | None:
    """The id of the run, of these of a session, that a claim has to take now; None if there is none."""
    occupying = [run for run in runs if run.status in OCCUPYING]
    if occupying:
        (run,) = occupying
        return run.id if run.status == RunStatus.WAITING and run.answers is not None else None
    queued = [run for run in runs if run.status == RunStatus.QUEUED]
    if undecided(runs) or not queued:
        return None
    heads = [run for run in queued if run.resumes_id or run.retries_id]
    return max(heads, key=created).id if heads else min(queued, key=created).id


def created(run: Run) -> datetime:
    return run.created_at


# The tools whose starts are committed before they begin.
GATED = frozenset({"mark"})


def effect_without_result(call: SimpleNamespace) -> Effect:
    """What is known of a call without a result: any that is not gated may have begun unseen."""
    return Effect.UNKNOWN if call.started or not call.gated else Effect.NONE


def fold(log: list[RunEvent]) -> dict[str, SimpleNamespace]:
    """The tool calls that a log tells of, by their ids."""
    calls: defaultdict[str, SimpleNamespace] = defaultdict(
        lambda: SimpleNamespace(status=ToolStatus.RUNNING, effect=None, started=False, gated=False)
    )
    for event in log:
        data = event.data
        if event.type == EventType.MESSAGE_COMPLETED:
            for asked in data["tool_calls"]:
                calls.pop(asked["id"], None)
                calls[asked["id"]].gated = asked["name"] in GATED
        elif event.type == EventType.TOOL_STARTED:
            calls[data["tool_call"]].started = True
        elif event.type == EventType.TOOL_COMPLETED:
            call = calls[data["tool_call"]]
            call.status, call.effect = ToolStatus.COMPLETED, Effect.DONE
        elif event.type == EventType.TOOL_FAILED:
            call = calls[data["tool_call"]]
            call.status, call.effect = ToolStatus.FAILED, Effect.DONE if call.started else Effect.NONE
        elif event.type == EventType.TOOL_CANCELLED:
            call = calls[data["tool_call"]]
            call.status = ToolStatus.CANCELLED
            call.effect = effect_without_result(call)
    return calls
