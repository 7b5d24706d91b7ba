"""A run that asks its user something: it waits, and it is answered."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.utils import timezone

from runs.errors import Invalid, NotWaiting
from runs.lifecycle import dispatch, statistics
from runs.lifecycle.endings import owned
from runs.lifecycle.locks import locked_run
from runs.lifecycle.status import Outcome
from runs.live import notices
from runs.log import events
from runs.models import Run
from runs.states import EventType, RunStatus


def wait(run_id: UUID, claim: int, questions: Sequence[Mapping[str, Any]]) -> Outcome:
    """The graph asked the user something: no execution exists until the answer is claimed."""
    with owned(run_id, claim) as own:
        if isinstance(own, Outcome):
            return own
        session, run = own
        if run.cancel_requested_at is not None:
            return Outcome.CANCEL_FIRST
        run.status = RunStatus.WAITING
        run.questions = list(questions)
        run.answers = None
        statistics.pause(run, timezone.now())
        events.record(run, [(EventType.RUN_WAITING, {"questions": run.questions})])
        run.save_changes()
        notices.touch(session)
        return Outcome.DONE


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
