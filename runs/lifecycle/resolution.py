"""What becomes of an ended run."""

from uuid import UUID

from runs.errors import NotInterrupted
from runs.lifecycle import dispatch, predicates
from runs.live import notices
from runs.models import Run, Session
from runs.states import TERMINAL, Resolution


def resolve(session: Session, run_id: UUID, resolution: Resolution) -> Run:
    """Decide about a run of a locked session, once. Raises NotInterrupted.

    While an interrupted run waits for a decision, that one alone. Otherwise a retry may be decided on any
    ending of the latest run, even on one that was dismissed; it takes back the whole turn, also what earlier
    runs of it did.
    """
    run = Run.objects.select_for_update().get(id=run_id)
    retried = resolution == Resolution.RETRIED
    undecided = predicates.undecided_in(session)
    if undecided is not None:
        is_open = run.id == undecided.id
    else:
        is_latest = run.position == session.last_position and run.status in TERMINAL
        is_open = retried and is_latest and run.resolution in (None, Resolution.DISMISSED)
    if not is_open:
        raise NotInterrupted
    if retried:
        turn = Run.objects.filter(session=session, message_id=run.message_id)
        turn.update(resolution=resolution, repaired=False)  # its messages have to leave the history again
        run.refresh_from_db()
    else:
        run.resolution = resolution
        run.save_changes()
    notices.touch(session)
    dispatch.request(session.id)
    return run
