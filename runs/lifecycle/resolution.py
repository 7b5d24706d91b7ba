"""What becomes of an ended run."""

from uuid import UUID

from django.db.models import QuerySet

from runs import statements
from runs.errors import NotInterrupted
from runs.lifecycle import dispatch
from runs.models import Run, Session
from runs.states import Resolution


def resolve(session: Session, run_id: UUID, resolution: Resolution) -> Run:
    """Decide about a run of a locked session, once. Raises NotInterrupted."""
    run = statements.lock_run(run_id)[0]
    before = run.resolution
    if not _may_resolve(session, run, resolution):
        raise NotInterrupted
    run.resolution = resolution
    if resolution == Resolution.RETRIED:
        run.repaired = False  # its messages leave the history again
    if not run.write(resolution=before):
        raise NotInterrupted
    if resolution == Resolution.RETRIED:
        _of_turn(run).update(resolution=resolution, repaired=False)
    session.has_changed = True
    dispatch.request(session.id)
    return run


def _may_resolve(session: Session, run: Run, resolution: Resolution) -> bool:
    """While an interrupted run waits for a decision, that one alone. Otherwise a retry of the latest run,
    however it ended, even if it was dismissed."""
    undecided = Run.objects.undecided().filter(session=session).first()
    if undecided is not None:
        return run.id == undecided.id
    is_latest = run.position == session.last_position and run.is_terminal
    return resolution == Resolution.RETRIED and is_latest and run.resolution in (None, Resolution.DISMISSED)


def _of_turn(run: Run) -> QuerySet[Run]:
    """The runs of the same turn: a retry takes back the whole turn, also what earlier runs of it did."""
    return Run.objects.filter(session=run.session_id, message_id=run.message_id)
