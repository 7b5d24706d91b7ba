"""Who comes late changes nothing, even without a lock: each change is conditional on what it expects.

What a late one knows of a run was read before somebody else changed it.
"""

import ast
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

import runs
from runs.errors import NotInterrupted, NotWaiting
from runs.lifecycle import (
    admission,
    cancel_operations,
    cancel_requests,
    endings,
    locks,
    questions,
    queue,
    resolution,
)
from runs.lifecycle.endings import Failure
from runs.lifecycle.status import Outcome
from runs.live import notices
from runs.models import Cancellation, Run, RunEvent, Session, ToolCall
from runs.states import ErrorCode, InterruptReason, RunStatus

pytestmark = pytest.mark.django_db

QUESTION = [{"id": "q", "value": "Really?"}]


@pytest.fixture
def run(alice, session, worker):
    """A run that is executed."""
    admission.admit(session.id, alice, admission.Turn("hello"))
    return queue.claim(session.id, worker.id)


def read(run):
    """The run and its session as they are now."""
    with locks.locked_run(run.id) as found:
        return found


@pytest.fixture
def without_lock(monkeypatch):
    """``without_lock(read)``: whoever locks a run next gets what was read earlier. After that, locks work."""

    def patch(read):
        given = [read]

        @contextmanager
        def locked_run(run_id):
            if not given:
                with locks.locked_run(run_id) as found:
                    yield found
                return
            session, run = given.pop()
            with transaction.atomic():
                yield session, run
                if session.has_changed:
                    notices.touch(session)

        for user in (endings, questions, cancel_requests):
            monkeypatch.setattr(user, "locked_run", locked_run)

    return patch


def rows():
    """All that a change of status may touch."""
    models = (Session, Run, RunEvent, ToolCall, Cancellation)
    return {model.__name__: list(model.objects.order_by("pk").values()) for model in models}


def finish(to, **how):
    return lambda run, actor: endings.finish(run.id, run.claim, to, **how)


def ask(run, actor):
    return questions.wait(run.id, run.claim, QUESTION)


def lose(run, actor):
    return endings.interrupt(run.id, run.worker_id, InterruptReason.WORKER_LOST)


def cancel(run, actor):
    return cancel_requests.request_cancel(run.id, source="user", reason="", requested_by=actor)


def force_cancel(run, actor):
    return cancel_requests.force_cancel(run.id, source="user", reason="", requested_by=actor)


ENDINGS = {
    "completes": finish(RunStatus.COMPLETED),
    "fails": finish(RunStatus.FAILED, error=Failure(ErrorCode.PROVIDER, "It broke.")),
    "drains": finish(RunStatus.INTERRUPTED, reason=InterruptReason.SHUTDOWN),
    "is lost": lose,
    "is force-cancelled": force_cancel,
}
LATE = {**ENDINGS, "asks": ask, "is cancelled": cancel, "ends cancelled": finish(RunStatus.CANCELLED)}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("first", ENDINGS)
def test_after_an_ending_whoever_is_late_changes_nothing(alice, run, without_lock, first, late):
    earlier = read(run)
    ENDINGS[first](run, alice)
    before = rows()

    without_lock(earlier)
    LATE[late](run, alice)

    assert rows() == before


@pytest.mark.parametrize("late", ["completes", "fails", "drains", "asks"])
def test_an_execution_that_missed_an_accepted_cancel_is_told_so(alice, run, without_lock, late):
    earlier = read(run)
    cancel(run, alice)
    before = rows()

    without_lock(earlier)

    assert LATE[late](run, alice) is Outcome.CANCEL_FIRST
    assert rows() == before


def test_an_execution_whose_run_was_claimed_again_is_told_so(alice, session, run, worker, without_lock):
    earlier = read(run)
    ask(run, alice)
    questions.answer(run.id, {"q": "yes"}, alice)
    assert queue.claim(session.id, worker.id).id == run.id
    before = rows()

    without_lock(earlier)

    assert ENDINGS["completes"](run, alice) is Outcome.FENCED
    assert rows() == before


def test_a_cancel_that_missed_the_claim_is_accepted_for_the_execution(alice, session, worker, without_lock):
    queued = admission.admit(session.id, alice, admission.Turn("hello"))
    earlier = read(queued)
    queue.claim(session.id, worker.id)

    without_lock(earlier)
    operation = cancel(queued, alice)

    assert operation.settled_at is None
    assert Run.objects.get(id=queued.id).status == RunStatus.RUNNING


def test_a_claim_that_missed_a_cancel_takes_nothing(alice, session, worker, monkeypatch):
    queued = admission.admit(session.id, alice, admission.Turn("hello"))
    earlier = Run.objects.get(id=queued.id)
    cancel(queued, alice)
    before = rows()

    monkeypatch.setattr(queue, "_next", lambda session_id: queued.id)
    monkeypatch.setattr(queue.statements, "lock_run", lambda run_id: [earlier])

    assert queue.claim(session.id, worker.id) is None
    assert rows() == before


def test_of_two_answers_the_first_stays(alice, run, without_lock):
    ask(run, alice)
    earlier = read(run)
    questions.answer(run.id, {"q": "yes"}, alice)
    before = rows()

    without_lock(earlier)
    with pytest.raises(NotWaiting):
        questions.answer(run.id, {"q": "no"}, alice)

    assert rows() == before


def test_of_two_decisions_the_first_stays(alice, session, run, monkeypatch):
    lose(run, alice)
    earlier = Run.objects.get(id=run.id)
    admission.dismiss(run)
    before = rows()

    monkeypatch.setattr(resolution.statements, "lock_run", lambda run_id: [earlier])
    monkeypatch.setattr(resolution, "_may_resolve", lambda session, run, how: True)
    with pytest.raises(NotInterrupted):
        admission.resume(run, alice)

    assert rows() == before


def test_a_cancel_is_settled_once(alice, run, monkeypatch):
    earlier = cancel(run, alice)
    finish(RunStatus.CANCELLED)(run, alice)
    before = rows()

    monkeypatch.setattr(cancel_operations, "unsettled", lambda session: earlier)

    assert not cancel_requests.time_out_cancellation(earlier.id)
    assert rows() == before


def test_an_ending_writes_its_session_once(alice, run, monkeypatch):
    cancel(run, alice)
    written = []
    touch = notices.touch
    monkeypatch.setattr(locks.notices, "touch", lambda session: (written.append(session.id), touch(session)))

    finish(RunStatus.CANCELLED)(run, alice)

    assert written == [run.session_id]


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_an_ending_writes_its_run_once(alice, run, ending):
    """A force-cancel writes the mark of the cancel before."""
    with CaptureQueriesContext(connection) as asked:
        ending(run, alice)

    written = [query["sql"] for query in asked if query["sql"].startswith('UPDATE "runs_run"')]
    assert len([sql for sql in written if '"finished_at"' in sql]) == 1
    assert len(written) == (2 if ending is force_cancel else 1)


def test_one_module_alone_gives_a_run_its_status():
    root = Path(runs.__file__).parent
    assigned = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for part in ast.walk(target)
        if isinstance(part, ast.Attribute) and part.attr == "status" and ast.unparse(part.value) == "run"
    }
    assert assigned == {"lifecycle/status.py"}
