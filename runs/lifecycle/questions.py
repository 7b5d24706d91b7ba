"""Questions of a run to its user: the run waits, and is answered."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.utils import timezone

from runs.errors import Invalid, NotFound, NotWaiting
from runs.lifecycle import dispatch, statistics, status
from runs.lifecycle.locks import locked_run
from runs.lifecycle.status import Outcome
from runs.models import Run
from runs.states import EventType, RunStatus


def wait(
    run_id: UUID, claim: int, questions: Sequence[Mapping[str, Any]], reason: str | None = None
) -> Outcome:
    """Let a run wait, since its graph asked the user something. It has no execution until it is answered.

    ``reason`` is why it asks again, if its graph refused an answer.
    """
    try:
        with locked_run(run_id) as (session, run):
            now = timezone.now()
            run.questions, run.answers = list(questions), None
            statistics.pause(run, now)
            asked: dict[str, Any] = {"questions": run.questions}
            if reason is not None:
                asked["reason"] = reason
            entries = [(EventType.RUN_WAITING, asked)]
            if not status.change(run, RunStatus.WAITING, entries, now, **status.of_claim(claim)):
                return status.what_was_first(run_id, claim)
            session.has_changed = True
            return Outcome.DONE
    except NotFound:
        return Outcome.FENCED


def answer(run_id: UUID, answers: Mapping[str, Any], by: Any) -> Run:
    """Store the answers of a waiting run, once. The run stays waiting until a claim takes it."""
    with locked_run(run_id) as (session, run):
        if run.status != RunStatus.WAITING or run.answers is not None:
            raise NotWaiting
        _check(answers, run)
        run.answers, run.answered_by = dict(answers), by
        told = [(EventType.RUN_ANSWERED, {"answers": run.answers, "by": by.get_username()})]
        waiting = RunStatus.WAITING
        if not status.change(run, waiting, told, timezone.now(), status=waiting, answers=None):
            raise NotWaiting
        session.has_changed = True
        dispatch.request(session.id)
        return run


def _check(answers: Mapping[str, Any], run: Run) -> None:
    """All questions are answered at once. Raises Invalid."""
    asked = {question["id"] for question in run.questions or ()}
    if set(answers) != asked:
        raise Invalid(f'"answers" must give a value to each question: {", ".join(sorted(asked))}.')
