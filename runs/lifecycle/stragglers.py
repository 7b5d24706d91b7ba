"""What ended runs have left at work: counted in their rows, and bounded for each user."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.conf import settings

from runs import statements
from runs.errors import NotFound, TooManyStragglers
from runs.lifecycle.locks import locked_run


def note(run_id: UUID, count: int, expected: Mapping[str, Any]) -> bool:
    """Store how much of a run is still at work, if its row has these values; whether that changed it."""
    try:
        with locked_run(run_id) as (session, run):
            if run.stragglers == count:
                return False
            run.stragglers = count
            session.has_changed = run.write(**expected)
            return session.has_changed
    except NotFound:
        return False


def refuse_too_many(user: Any) -> None:
    """Raise TooManyStragglers if so much of the user's stopped runs is at work that no other may start."""
    if sum(count for (count,) in statements.stragglers_of(user.pk)) >= settings.RUNS_STRAGGLER_LIMIT:
        raise TooManyStragglers
