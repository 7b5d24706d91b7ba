"""A run that has asked the user waits, and is answered once."""

from datetime import timedelta

import pytest
from django.utils import timezone

from runs import operations
from runs.errors import NotWaiting
from runs.foundation.database import in_thread
from runs.lifecycle import admission, endings, questions, queue
from runs.models import Run
from runs.states import RunStatus
from tests.runs.lifecycle.turns import turn

pytestmark = pytest.mark.django_db


def test_a_question_of_a_cancelled_run_can_no_longer_be_answered(alice, session, worker):
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    questions.wait(run.id, claimed.claim, [{"id": "q", "value": "Really?"}])

    operations.cancel_run(alice, run.id)

    with pytest.raises(NotWaiting):
        operations.answer(alice, run.id, {"q": "yes"})
    run.refresh_from_db()
    assert run.status == RunStatus.CANCELLED


def test_a_question_whose_value_only_python_takes_for_the_one_before_is_stored(alice, session, worker):
    """To Python, 1 equals true; in JSON they differ."""
    admission.admit(session.id, alice, admission.Turn("hello"))
    for value in (1, True):
        run = queue.claim(session.id, worker.id)
        questions.wait(run.id, run.claim, [{"id": "q", "value": value}])
        assert Run.objects.get(id=run.id).questions[0]["value"] is value
        questions.answer(run.id, {"q": "Yes"}, alice)


def test_the_time_until_the_answer_comes_does_not_count(alice, session, worker, monkeypatch):
    """Neither the user who thinks nor the queue behind the answer is work of the run."""
    clock = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: clock)
    run = admission.admit(session.id, alice, turn())
    claimed = queue.claim(session.id, worker.id)
    clock += timedelta(seconds=2)
    questions.wait(run.id, claimed.claim, [{"id": "q", "value": "Really?"}])
    assert duration(alice, run) == 2000

    clock += timedelta(hours=1)
    assert duration(alice, run) == 2000
    operations.answer(alice, run.id, {"q": "yes"})
    clock += timedelta(hours=1)
    assert duration(alice, run) == 2000

    claimed = queue.claim(session.id, worker.id)
    clock += timedelta(seconds=3)
    endings.finish(run.id, claimed.claim, RunStatus.COMPLETED)
    assert duration(alice, run) == 5000


def duration(owner, run):
    return operations.get_run(owner, run.id)["statistics"]["duration_ms"]


async def test_an_answered_question_goes_on_in_the_same_run(harness):
    from tests.fakes import call, say
    from tests.runs.waiting import log_of, status, terminal

    harness.script.add(call("ask", question="Really?"), say("Then so be it."))
    run_id = await harness.start()
    waiting = await status(run_id, "waiting")

    await in_thread(operations.answer, harness.owner, run_id, {waiting.questions[0]["id"]: "Yes"})

    ended = await terminal(run_id)
    assert ended.status == "completed", ended.error_message
    assert harness.marks.read() == ["answered Yes"]
    types = [e.type for e in await log_of(run_id)]
    assert types.count("tool.started") == 1
    assert types.count("tool.completed") == 1
    assert types.index("run.waiting") < types.index("run.answered") < types.index("tool.completed")
