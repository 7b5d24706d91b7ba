"""Runs in random interleavings of everything that may happen to them, on the database.

``STATEFUL_EXAMPLES`` (default 10) is how many lives are tried, ``STATEFUL_STEPS`` (40) how long each is, and
``STATEFUL_SEED`` repeats one that was printed; "random" takes a new one.

Each mutation takes one guard out of the engine and asserts that the machine notices. A few of them are tried
by default; ``STATEFUL_MUTATIONS=all`` tries all, which takes some minutes.
"""

import inspect
import os
import random
import textwrap

import pytest
from django.db import IntegrityError
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from runs import admission, calls, cancellation, events, lifecycle, recovery, statistics
from tests.runs.lives import Lives

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "10"))
STEPS = int(os.environ.get("STATEFUL_STEPS", "40"))
# The gate tries the same lives each time; to look for more, give it "random".
_wanted = os.environ.get("STATEFUL_SEED", "1")
SEED = random.randrange(2**32) if _wanted == "random" else int(_wanted)

pytestmark = pytest.mark.django_db


def live(examples, number):
    run_state_machine_as_test(
        seed(number)(type("Lives", (Lives,), {})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            report_multiple_bugs=False,
            database=None,
            phases=[Phase.generate],  # a failure is repeated by its seed; to shrink it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(3600)
def test_whatever_happens_to_runs_every_invariant_holds():
    print(f"STATEFUL_SEED={SEED}")
    live(EXAMPLES, SEED)


MUTATIONS = {
    "the log takes events of anybody": (
        events._commit,
        "if row is None or row[1] != RunStatus.RUNNING or row[2] != log.claim:",
        "if row is None:",
    ),
    "the log takes events of an earlier claim": (events._commit, " or row[2] != log.claim", ""),
    "the log takes events of an ended run": (events._commit, " or row[1] != RunStatus.RUNNING", ""),
    "a batch whose reply was lost is written twice": (
        events._commit,
        "if retrying and batches == log.batches + 1:",
        "if False:",
    ),
    "estimates of open calls are forgotten at the end": (
        statistics.close,
        "run.input_tokens = _sum(run.input_tokens, run.open_input_tokens)",
        "pass",
    ),
    "open calls stay open at the end": (calls.close_open, "status=ToolStatus.RUNNING", "status=None"),
    "a completion overrules an accepted cancel": (
        lifecycle.finish,
        "run.cancel_requested_at is not None and",
        "False and",
    ),
    "a question overrules an accepted cancel": (
        lifecycle.wait,
        "run.cancel_requested_at is not None",
        "False",
    ),
    "a sweep overrules an accepted cancel": (
        lifecycle._end,
        "if run.cancel_requested_at is not None and status",
        "if False and status",
    ),
    "an ended run ends again": (
        lifecycle._owned.__wrapped__,
        "run.status != RunStatus.RUNNING or run.claim != claim",
        "run.claim != claim",
    ),
    "an earlier claim ends the run": (
        lifecycle._owned.__wrapped__,
        " or run.claim != claim",
        "",
    ),
    "an ending leaves its cancel unsettled": (
        lifecycle._settle,
        "if operation is not None:",
        "if False:",
    ),
    "settling does not move the revision": (
        cancellation.settle,
        "session.cancellation_revision += 1",
        "pass",
    ),
    "accepting does not move the revision": (
        cancellation.accept,
        "session.cancellation_revision += 1",
        "pass",
    ),
    "a cancel of a dead worker's run waits": (
        lifecycle.request_cancel,
        "if run.worker is None or liveness.is_dead(run.worker):",
        "if False:",
    ),
    "a cancel of a queued run waits": (
        lifecycle.request_cancel,
        "if run.status != RunStatus.RUNNING:",
        "if run.status == RunStatus.WAITING:",
    ),
    "a second cancel is a second operation": (
        lifecycle.request_cancel,
        "if operation is None or operation.run_id != run.id:",
        "if True:",
    ),
    "a second acceptance moves the time of the first": (
        lifecycle.request_cancel,
        "run.cancel_requested_at = run.cancel_requested_at or now",
        "run.cancel_requested_at = now",
    ),
    "a session's cancel spares the queue": (
        lifecycle.request_session_cancel,
        "status__in=ACTIVE",
        "status__in=OCCUPYING",
    ),
    "an overdue cancel is not settled": (
        lifecycle.time_out_cancellation,
        "cancellation.settle(session, overdue, CancelOutcome.TIMED_OUT)",
        "pass",
    ),
    "the last in line is claimed first": (lifecycle.claim, '.order_by("line")', '.order_by("-line")'),
    "an undecided turn does not hold the queue": (
        lifecycle.claim,
        "if unresolved_interruption(session) is not None:",
        "if False:",
    ),
    "an answered run is never claimed again": (
        lifecycle.claim,
        "if occupying.status != RunStatus.WAITING or occupying.answers is None:",
        "if True:",
    ),
    "a claim does not raise its number": (lifecycle.claim, "run.claim += 1", "run.claim = 1"),
    "what goes on has to queue": (
        lifecycle.enqueue,
        "-session.last_line if head else session.last_line",
        "session.last_line",
    ),
    "a question is answered twice": (lifecycle.answer, " or run.answers is not None", ""),
    "a decision is taken twice": (
        lifecycle.resolve,
        "if decided or run.status not in allowed",
        "if run.status not in allowed",
    ),
    "any ended run can be resumed": (
        lifecycle.resolve,
        "allowed = TERMINAL if retried else (RunStatus.INTERRUPTED,)",
        "allowed = TERMINAL",
    ),
    "a turn is taken beside a queued one": (
        admission.admit,
        "status__in=ACTIVE",
        'status__in=("running", "waiting")',
    ),
    "a key is forgotten": (admission.admit, "if turn.key is not None:", "if False:"),
    "the sweep forgets answered runs": (
        recovery._offer_waiting_sessions,
        "answers__isnull=False",
        "answers__isnull=True",
    ),
    "the sweep forgets dead workers": (
        recovery._bury_dead_workers,
        "worker.id not in silent and not liveness.is_gone(worker)",
        "worker.id not in silent",
    ),
    "the sweep forgets runs without a worker": (
        recovery._end_orphans,
        "swept.runs_interrupted += lifecycle.interrupt(run_id, None, InterruptReason.WORKER_LOST)",
        "pass",
    ),
}


QUICK = (
    "the log takes events of anybody",
    "an ended run ends again",
    "settling does not move the revision",
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS if os.environ.get("STATEFUL_MUTATIONS") == "all" else QUICK)
def test_the_machine_notices_that(name, monkeypatch):
    function, guard, broken = MUTATIONS[name]
    break_guard(monkeypatch, function, guard, broken)

    with pytest.raises((AssertionError, IntegrityError)) as found:
        live(100, 1)

    print(f"{name}: {type(found.value).__name__}: {found.value}")


def break_guard(monkeypatch, function, guard, broken):
    """Put a copy of the function, with ``guard`` replaced, in its place."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(guard) == 1, "the guard has moved"
    module = inspect.getmodule(function)
    copy: dict = {}
    exec(compile(source.replace(guard, broken), module.__file__, "exec"), module.__dict__, copy)
    monkeypatch.setattr(module, function.__name__, copy[function.__name__])
