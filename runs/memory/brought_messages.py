"""Messages that a client brought along when it opened a session: the history before the first turn.

The table Seed keeps them. The session's first turn writes them into the checkpoint: with the graph's input,
or with the repair if it ended before its first checkpoint. Until then readers put them before the messages of
the checkpoint.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID, uuid5

from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from runs import statements
from runs.memory.normalise import HistoryChanges, pair_calls_with_results
from runs.models import Run, Session

Stored: TypeAlias = list[dict[str, Any]]


def serialise(session_id: UUID, messages: Sequence[BaseMessage]) -> Stored:
    """The rows' form of ``messages``: normalised, with ids that are the same for each call."""
    named = [
        message.model_copy(update={"id": str(uuid5(session_id, str(place)))})
        for place, message in enumerate(messages)
    ]
    return messages_to_dict(pair_calls_with_results(named, (), HistoryChanges()))


def of(session: Session) -> list[BaseMessage]:
    """The messages brought to a session."""
    seed = statements.seed.first(session.id)
    return messages_from_dict(seed.messages) if seed is not None else []


def not_in_checkpoint(session: Session) -> list[BaseMessage]:
    """The messages brought to a session, while its checkpoint may not hold them yet; else nothing."""
    brought = of(session)
    return [] if brought and Run.objects.filter(session=session, repaired=True).exists() else brought


def to_prepend(brought: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What has to be put before ``messages``: all of ``brought``, or nothing if they are in there."""
    ids = {message.id for message in brought}
    return [] if any(message.id in ids for message in messages) else list(brought)
