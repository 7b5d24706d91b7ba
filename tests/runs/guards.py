"""The guards of the engine that hold its invariants, and how each is broken on purpose.

By the sentence that says what then happens: the function, the text of the guard in it, and what stands there
instead. ``guards.txt`` tells how breaks showed.
"""

import inspect
import sys
import textwrap

from runs.lifecycle import (
    admission,
    cancellation,
    closing_events,
    dispatch,
    liveness,
    statistics,
    transitions,
)
from runs.live import notices
from runs.log import events, tool_calls, writer
from runs.memory.checkpoints import fence, saver
from runs.recovery import reconciliation, sweep
from runs.wire import statistics as numbers
from runs.worker import graph_input
from tests.runs.lives import Lives
from tests.runs.memory.writes import Writes

ONE_TERMINAL_FACT = {
    "an ended run ends again": (
        transitions._owned,
        "run.status != RunStatus.RUNNING or run.claim != claim",
        "run.claim != claim",
    ),
    "an earlier claim ends the run": (transitions._owned, " or run.claim != claim", ""),
    "a sweep takes what its worker executes no more": (
        transitions.interrupt,
        "run.status != RunStatus.RUNNING or run.worker_id != worker_id",
        "run.worker_id != worker_id",
    ),
    "a sweep takes the run of another worker": (transitions.interrupt, " or run.worker_id != worker_id", ""),
    "a cancel ends an ended run": (
        transitions.request_cancel,
        "if run.status in TERMINAL:",
        "if run.status == RunStatus.CANCELLED:",
    ),
    "a force-cancel ends an ended run": (transitions.force_cancel, "if run.status in TERMINAL:", "if False:"),
    "reconciling takes the run of a living worker": (
        reconciliation._running,
        "if run.worker is not None and not liveness.is_dead(run.worker):",
        "if False:",
    ),
}

AN_ACCEPTED_CANCEL_WINS = {
    "a completion overrules an accepted cancel": (
        transitions.finish,
        "run.cancel_requested_at is not None and",
        "False and",
    ),
    "a question overrules an accepted cancel": (
        transitions.wait,
        "run.cancel_requested_at is not None",
        "False",
    ),
    "a sweep overrules an accepted cancel": (
        transitions._end,
        "if run.cancel_requested_at is not None and status",
        "if False and status",
    ),
    "a cancel of a queued run waits": (
        transitions.request_cancel,
        "if run.status != RunStatus.RUNNING:",
        "if run.status == RunStatus.WAITING:",
    ),
    "a cancel of a waiting run waits": (
        transitions.request_cancel,
        "if run.status != RunStatus.RUNNING:",
        "if run.status == RunStatus.QUEUED:",
    ),
    "a second acceptance moves the time of the first": (
        transitions.request_cancel,
        "run.cancel_requested_at = run.cancel_requested_at or now",
        "run.cancel_requested_at = now",
    ),
    "a force-cancel moves the time of the first acceptance": (
        transitions.force_cancel,
        "run.cancel_requested_at = run.cancel_requested_at or now",
        "run.cancel_requested_at = now",
    ),
    "a session's cancel spares the queue": (
        transitions.request_session_cancel,
        "status__in=ACTIVE",
        "status__in=(RunStatus.RUNNING, RunStatus.WAITING)",
    ),
    "an interrupting turn spares what is active": (
        admission.admit,
        "_cancel_all(session, active, actor)",
        "pass",
    ),
    "the worker is not told to stop": (
        transitions.request_cancel,
        "notices.stop_execution(run, fenced=False)",
        "pass",
    ),
}

ONE_OPERATION = {
    "a second cancel is a second operation": (
        transitions.request_cancel,
        "if operation is None or operation.run_id != run.id:",
        "if True:",
    ),
    "a force-cancel is a second operation": (
        transitions.force_cancel,
        " and cancellation.unsettled(session) is None",
        "",
    ),
    "a session's cancel answers with the queue's": (
        transitions.request_session_cancel,
        "key=lambda run: run.status == RunStatus.QUEUED",
        "key=lambda run: run.status != RunStatus.QUEUED",
    ),
}

PENDING_IS_DERIVED = {
    "accepting does not move the revision": (
        cancellation.accept,
        "session.cancellation_revision += 1",
        "pass",
    ),
    "settling does not move the revision": (
        cancellation.settle,
        "session.cancellation_revision += 1",
        "pass",
    ),
    "accepting is not told": (
        cancellation.accept,
        "notices.cancellation_changed(session, pending=True)",
        "pass",
    ),
    "settling is not told": (
        cancellation.settle,
        "notices.cancellation_changed(session, pending=False)",
        "pass",
    ),
    "an interrupting turn writes back the session it had read": (
        admission._cancel_all,
        "session.refresh_from_db()",
        "pass",
    ),
}

NOBODY_WAITS_FOR_EVER = {
    "an ending leaves its cancel unsettled": (transitions._settle, "if operation is not None:", "if False:"),
    "a cancel of a dead worker's run waits": (
        transitions.request_cancel,
        "if run.worker is None or liveness.is_dead(run.worker):",
        "if False:",
    ),
    "an overdue cancel is not settled": (
        transitions.time_out_cancellation,
        "cancellation.settle(session, overdue, CancelOutcome.TIMED_OUT)",
        "pass",
    ),
    "a late sweep settles the next cancel": (
        transitions.time_out_cancellation,
        " or overdue.id != cancellation_id",
        "",
    ),
    "a sweep settles what is not overdue": (
        sweep.overdue_cancellations,
        "accepted_at__lt=Now() - limit",
        "accepted_at__isnull=False",
    ),
    "the end of a run whose cancel had timed out names none": (
        transitions._settle,
        "(late := _cancellation_of(run)) is not None",
        "(late := None) is not None",
    ),
    "the sweep forgets dead workers": (
        liveness.dead,
        "worker.id in silent_ids or is_gone(worker)",
        "worker.id in silent_ids",
    ),
    "the sweep forgets runs without a worker": (
        sweep._end_orphans,
        'swept.runs_interrupted += interrupt_lost(orphans.values_list("id", flat=True), None)',
        "pass",
    ),
    "a slow worker on SQLite is taken for dead": (
        liveness.silent,
        'if connection.vendor == "sqlite":',
        "if False:",
    ),
}

LOG_THEN_TELL = {
    "a batch whose reply was lost is written twice": (
        writer._commit,
        "if retrying and batches == log.batches + 1:",
        "if False:",
    ),
    "a batch that was lost is not written again": (
        writer._commit,
        "if retrying and batches == log.batches + 1:",
        "if retrying:",
    ),
    "a batch whose reply was lost is told under other numbers": (
        writer._commit,
        "part.first = last_seq - len(part.encoded) + 1",
        "part.first = last_seq + 1",
    ),
    "events are told before their commit": (
        events.record,
        "transaction.on_commit(lambda: publish(run.session_id, run.id, position, first, told))",
        "publish(run.session_id, run.id, position, first, told)",
    ),
    "what is in the queue is told": (events.record, "if run.position is not None:", "if True:"),
    "that a run was queued is never told": (
        transitions._leave_queue,
        "transaction.on_commit(lambda: events.publish(run.session_id, run.id, position, 1, told))",
        "pass",
    ),
    "nobody is told that a session changed": (notices.touch, "session_changed(session)", "pass"),
}

NO_WORK_AFTER_THE_END = {
    "the log takes events of anybody": (
        writer._commit,
        "if row is None or row[1] != RunStatus.RUNNING or row[2] != log.claim:",
        "if row is None:",
    ),
    "the log takes events of an earlier claim": (writer._commit, " or row[2] != log.claim", ""),
    "the log takes events of an ended run": (writer._commit, " or row[1] != RunStatus.RUNNING", ""),
    "a claim does not raise its number": (transitions.claim, "run.claim += 1", "run.claim = 1"),
    "a running run is claimed again": (
        transitions._next_in_line,
        "status == RunStatus.WAITING and answers is not None",
        "answers is not None",
    ),
    "a worker that is taken for dead is given a run": (transitions.claim, "if worker is None:", "if False:"),
    "a force-cancel leaves the saver open": (transitions.force_cancel, "dispatch.seal(run.id)", "pass"),
    "open calls stay open at the end": (tool_calls.close_open, "status=ToolStatus.RUNNING", "status=None"),
    "a straggler changes what was known": (transitions.straggler_ended, ", effect=Effect.UNKNOWN", ""),
}

# Of the same invariant, what holds checkpoints back; on SQLite there is nothing else.
NO_CHECKPOINT_AFTER_THE_END = {
    "an operation begins behind a closed fence": (
        fence.run_shielded,
        "if any(fence.closed for fence in fences):",
        "if False:",
    ),
    "a fence does not know what went through": (fence.run_shielded, "fence.enter(task)", "pass"),
    "a fence stays open": (fence.Fence.close, "self.closed = True", "pass"),
    "a fence closes on what is on its way": (fence.Fence.close, "while self._inside:", "while False:"),
    "a cancel cuts an operation": (fence.run_shielded, "await asyncio.wait((task,))", "await task"),
    "an operation swallows the cancel": (fence.run_shielded, "if cancelled is None:", "if True:"),
    "a fenced saver writes": (
        saver.FencedSaver._write,
        "self._fence, self._storage.fence",
        "self._storage.fence",
    ),
    "a saver writes when the process has left": (
        saver.FencedSaver._write,
        "self._fence, self._storage.fence",
        "self._fence",
    ),
    "a saver reads when the process has left": (
        saver.ReadingSaver._read,
        "self._storage.read(read), self._storage.fence",
        "self._storage.read(read)",
    ),
    "a write does not name its claim": (
        saver.FencedSaver._write,
        "self._storage.write(operation, self._claim)",
        "self._storage.write(operation)",
    ),
    "checkpoints are written as if they were read": (
        saver.FencedSaver.aput,
        "await self._write(",
        "await self._read(",
    ),
    "late writes on a checkpoint pass": (
        saver.FencedSaver.aput_writes,
        "await self._write(",
        "await self._read(",
    ),
    "a thread is deleted as if it were read": (
        saver.FencedSaver.adelete_thread,
        "await self._write(",
        "await self._read(",
    ),
    "a saver with an allowlist has a fence of its own": (
        saver.ReadingSaver.with_allowlist,
        "clone = copy.copy(self)",
        "clone = copy.copy(self); clone._fence = Fence()",
    ),
}

NUMBERS_ARE_TRUE = {
    "estimates of open calls are forgotten at the end": (
        statistics.close,
        "run.input_tokens = sum_known(run.input_tokens, run.open_input_tokens)",
        "pass",
    ),
    "estimates are not marked": (statistics.close, "run.tokens_estimated = True", "pass"),
    "a batch forgets its counts": (
        writer._commit,
        "columns, values = _increments(part.counts)",
        'columns, values = "", ()',
    ),
    "text in progress is not counted": (
        writer._increments,
        "for name in _COUNTED:",
        "for name in _COUNTED[:-1]:",
    ),
    "a later message moves the time of the first token": (
        writer._increments,
        "COALESCE(first_token_ms, %s)",
        "%s",
    ),
    "calls closed at the end are no messages": (
        transitions._end,
        "run.message_count += closing_events.messages_in(owed)",
        "pass",
    ),
    "a resumed turn counts its message again": (
        transitions.enqueue,
        "run.message_count = 0 if run.resumes_id else 1",
        "run.message_count = 1",
    ),
    "the time until an answer counts": (
        transitions.claim,
        "run.claimed_at = now",
        "run.claimed_at = run.started_at",
    ),
    "the last stretch is not counted": (
        transitions._end,
        "elif before == RunStatus.RUNNING:",
        "elif False:",
    ),
    "the time before a question is not counted": (
        transitions.wait,
        "statistics.pause(run, timezone.now())",
        "run.claimed_at = None",
    ),
    "the time that a lost execution was silent counts": (
        transitions._end,
        "run.last_event_at if lost else now",
        "now",
    ),
    "a session does not count calls in progress": (
        numbers._of_row,
        'sum_known(row["total_output_tokens"], row["open_output"])',
        'row["total_output_tokens"]',
    ),
}

HISTORY_IS_SENDABLE = {
    "a batch keeps no tool calls": (
        writer._commit,
        "calls.project_encoded(log.run_id, part.encoded, now)",
        "pass",
    ),
    "a call whose id was used before is the old one": (
        tool_calls._project,
        'ToolCall.objects.filter(run_id=run_id, call_id=lookup_key(call["id"])).delete()',
        "pass",
    ),
    "what may be continued is closed": (
        closing_events.owed,
        "resumable=run.status == RunStatus.INTERRUPTED",
        "resumable=False",
    ),
    "a call that never began may have worked": (
        tool_calls.close_open,
        "Effect.UNKNOWN if call.started_at or lost else Effect.NONE",
        "Effect.UNKNOWN",
    ),
    "a call that a lost run may have begun did nothing": (
        tool_calls.close_open,
        "call.started_at or lost",
        "call.started_at",
    ),
    "an interrupted call that a lost run may have begun did nothing": (
        tool_calls.close_open,
        "if lost:",
        "if False:",
    ),
    "an interrupted call that never began may have worked": (
        tool_calls.close_open,
        "then=Value(Effect.NONE)",
        "then=Value(Effect.UNKNOWN)",
    ),
    "a turn ends without an answer": (closing_events.owed, "entries += _note(run)", "pass"),
    "every end counts as repaired": (transitions._end, "run.repaired = repaired", "run.repaired = True"),
    "what is retried stays in the history": (transitions.resolve, ", repaired=False", ""),
    "a turn that resumes takes the history for repaired": (
        graph_input.load,
        "    _load_earlier(turn)",
        "    if not continues:\n        _load_earlier(turn)",
    ),
    "a turn that resumes takes those behind its beginning for earlier ones": (
        graph_input._load_earlier,
        "statements.unrepaired_runs(first.session_id, first.position)",
        "statements.unrepaired_runs(first.session_id, turn.run.position)",
    ),
    "half a turn is retried": (
        transitions.resolve,
        "Run.objects.filter(session=session, message_id=run.message_id)",
        "Run.objects.filter(id=run.id)",
    ),
}

# Without these there is no order in which the invariants could hold.
THE_LINE = {
    "the last in line is claimed first": (transitions._next_in_line, "line[0][1]", "line[-1][1]"),
    "an undecided turn does not hold the queue": (
        transitions._next_in_line,
        "sorted(statements.order_of_open_runs(session.id))",
        "sorted(one for one in statements.order_of_open_runs(session.id) if one[2] in ACTIVE)",
    ),
    "a cancel in the queue takes a decision away": (
        transitions.unresolved_interruption,
        "filter(session=session)",
        "filter(session=session, position=session.last_position)",
    ),
    "an answered run is never claimed again": (
        transitions._next_in_line,
        "status == RunStatus.WAITING and answers is not None",
        "False",
    ),
    "a question is claimed before its answer": (
        transitions._next_in_line,
        "status == RunStatus.WAITING and answers is not None",
        "status == RunStatus.WAITING",
    ),
    "a run is claimed beside another": (
        transitions._next_in_line,
        "if status != RunStatus.QUEUED:",
        "if status == RunStatus.WAITING:",
    ),
    "an answered run starts again": (transitions.claim, "if first_claim:", "if True:"),
    "what goes on has to queue": (
        transitions.enqueue,
        "-session.last_line if head else session.last_line",
        "session.last_line",
    ),
    "a question is answered twice": (transitions.answer, " or run.answers is not None", ""),
    "what does not wait is answered": (transitions.answer, "run.status != RunStatus.WAITING or ", ""),
    "half an answer is enough": (transitions.answer, "if set(answers) != asked:", "if False:"),
    "an old answer is taken for the next question": (transitions.wait, "run.answers = None", "pass"),
    "a decision about another run is taken": (
        transitions.resolve,
        "is_open = run.id == undecided.id",
        "is_open = True",
    ),
    "a retry is taken twice": (
        transitions.resolve,
        " and run.resolution in (None, Resolution.DISMISSED)",
        "",
    ),
    "any ended run can be resumed": (
        transitions.resolve,
        "is_open = retried and is_latest",
        "is_open = is_latest",
    ),
    "an earlier turn can be retried": (
        transitions.resolve,
        "run.position == session.last_position and run.status in TERMINAL",
        "run.status in TERMINAL",
    ),
    "a turn that goes on can be retried": (transitions.resolve, " and run.status in TERMINAL", ""),
    "a new message leaves an interrupted turn undecided": (
        admission.admit,
        "if interrupted.status == RunStatus.INTERRUPTED:",
        "if False:",
    ),
    "a turn is taken beside a queued one": (
        admission.admit,
        "if run.status in ACTIVE",
        'if run.status in ("running", "waiting")',
    ),
    "a key is forgotten": (admission.admit, "if turn.key is not None:", "if False:"),
    "a key gives its run to another request": (
        admission.admit,
        "if earlier.request_digest != turn.digest:",
        "if False:",
    ),
    "the queue has no limit": (
        admission._check_queue,
        "if queued >= settings.RUNS_QUEUE_LIMIT:",
        "if False:",
    ),
    "a new turn is not offered": (transitions.enqueue, "dispatch.request(session.id)", "pass"),
    "an answer is not offered": (transitions.answer, "dispatch.request(session.id)", "pass"),
    "a decision is not offered": (transitions.resolve, "dispatch.request(session.id)", "pass"),
    "the end of a turn does not offer the next": (transitions._end, "dispatch.request(session.id)", "pass"),
    "a session is offered before the commit": (
        dispatch.request,
        "transaction.on_commit(lambda: offer(session_id))",
        "offer(session_id)",
    ),
    "the sweep forgets answered runs": (
        sweep._offer_waiting_sessions,
        "answers__isnull=False",
        "answers__isnull=True",
    ),
    "the sweep forgets the queue": (
        sweep._offer_waiting_sessions,
        "(Exists(queued) & ~Exists(occupied) & ~Exists(undecided))",
        "Exists(answered)",
    ),
}

GUARDS = {
    "One terminal fact": ONE_TERMINAL_FACT,
    "An accepted cancel wins": AN_ACCEPTED_CANCEL_WINS,
    "One operation": ONE_OPERATION,
    "Pending is derived": PENDING_IS_DERIVED,
    "Nobody waits for ever": NOBODY_WAITS_FOR_EVER,
    "Log, then tell": LOG_THEN_TELL,
    "No work after the end": NO_WORK_AFTER_THE_END,
    "No work after the end: checkpoints": NO_CHECKPOINT_AFTER_THE_END,
    "Numbers are true": NUMBERS_ARE_TRUE,
    "History is always sendable": HISTORY_IS_SENDABLE,
    "The line": THE_LINE,
}
BREAKS = {name: found for invariant in GUARDS.values() for name, found in invariant.items()}


def machine_for(name):
    """The one that has to notice."""
    return Writes if name in NO_CHECKPOINT_AFTER_THE_END else Lives


def source_of(name):
    """Of the function with this guard, which has to be in it once."""
    function, guard, _ = BREAKS[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(guard) == 1, f"The guard has moved: {guard}"
    return source


def break_guard(monkeypatch, name):
    """Put a copy of the function, with the guard replaced, wherever it is used."""
    function, guard, broken = BREAKS[name]
    module = inspect.getmodule(function)
    copy: dict = {}
    source = source_of(name).replace(guard, broken)
    exec(compile(source, module.__file__, "exec"), module.__dict__, copy)
    *owner, own_name = function.__qualname__.split(".")
    if owner:
        monkeypatch.setattr(getattr(module, owner[0]), own_name, copy[own_name])
        return
    users = [one for one in sys.modules.values() if getattr(one, "__name__", "").startswith("runs.")]
    for user in users:
        if getattr(user, own_name, None) is function:
            monkeypatch.setattr(user, own_name, copy[own_name])
