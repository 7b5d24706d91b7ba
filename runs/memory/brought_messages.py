"""The messages that a session begins with, when whoever opened it brought a conversation along.

They are kept beside the session until its first turn takes them into the checkpoint: with the graph's input,
or, when that turn ended before its first checkpoint, with the repair. Whoever reads the checkpoint before
that puts them at its head.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID, uuid5

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from runs import statements
from runs.memory.normalise import Changes, answered
from runs.models import Run, Session

Stored: TypeAlias = list[dict[str, Any]]


def stored(session_id: UUID, messages: Sequence[BaseMessage]) -> Stored:
    """``messages`` in the form they are kept in: sendable, and under ids that are the same each time."""
    named = [
        message.model_copy(update={"id": str(uuid5(session_id, str(place)))})
        for place, message in enumerate(messages)
    ]
    return messages_to_dict(answered(named, (), Changes()))


def pending(session: Session) -> list[BaseMessage]:
    """The seed of a session whose checkpoint may not hold it yet, else nothing."""
    seed = statements.seed.first(session.id)
    if seed is None or Run.objects.filter(session=session, repaired=True).exists():
        return []
    return messages_from_dict(seed.messages)


def missing(seed: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What of ``seed`` has to be put before ``messages``: all of it or, when they begin with it, nothing."""
    ids = {message.id for message in seed}
    return [] if any(message.id in ids for message in messages) else list(seed)
