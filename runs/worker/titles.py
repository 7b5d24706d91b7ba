"""A better title than the user's first words, if the agent's policy generates one. No run counts its cost."""

import logging
from uuid import UUID

from runs import agents
from runs.errors import AgentMismatch, NotFound
from runs.foundation.database import in_thread
from runs.foundation.limits import TITLE_LIMIT
from runs.lifecycle import titles
from runs.log import transcript
from runs.models import Run, RunEvent
from runs.states import EventType, Origin, RunStatus, TitleSource

logger = logging.getLogger(__name__)


async def improve(run: Run) -> None:
    """After a session's first answer, put a generated title in place of the words. Never raises."""
    try:
        generate = agents.policy_of(run.session.agent).generate_title
        said = await in_thread(_first_answer, run.id) if generate is not None else None
        if generate is None or said is None:
            return
        title = await generate(*said)
        if title:
            await in_thread(titles.rename, run.session_id, title[:TITLE_LIMIT], TitleSource.GENERATED)
    except (AgentMismatch, NotFound):
        pass  # the agent or the session is gone meanwhile
    except Exception:  # the agent's own function may raise anything; the words are a title, too
        logger.exception("The title of session %s stays as it is.", run.session_id)


def _first_answer(run_id: UUID) -> tuple[str, str] | None:
    """What the user said and what was answered, if the title is still made of the user's words."""
    run = Run.objects.select_related("session").filter(id=run_id).first()
    if run is None or run.status != RunStatus.COMPLETED or run.session.title_source != TitleSource.WORDS:
        return None
    if run.session.origin == Origin.API:  # such a session is in no list, and nobody would see the title
        return None
    log = RunEvent.objects.filter(run=run).exclude(type=EventType.MESSAGE_DELTA).order_by("seq")
    answers = transcript.fold(run, log).answers
    return (run.input, answers[-1].text) if answers and answers[-1].text else None
