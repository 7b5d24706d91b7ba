"""What only the checkpoints of older versions knew of their turns, written down beside the log.

Once the history of ended turns was read from the checkpoint. So the logs of that time lack what no model
streamed (messages that a node gave as plain data, say), and have texts that the graph did not keep. An
amendment of a turn says what its log lacks, and which of its messages are work. The log itself is final.

A session of that time is amended before it is read or goes on. ``manage.py amend_sessions`` amends all of
them; it may be stopped and started again, and run beside a working system.
"""

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from runs import agents
from runs.errors import EngineError
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread
from runs.foundation.values import clean, text_of
from runs.log import transcript
from runs.log.events import WHOLE_MESSAGES, message_key
from runs.log.transcript import Transcript
from runs.memory import root_state, state_messages
from runs.memory.checkpoints import process_checkpoints
from runs.memory.representations import represent
from runs.models import Amendment, Run, RunEvent, Seed, Session
from runs.states import TERMINAL, Audience, Resolution
from runs.wire import contract
from runs.wire.encoding import timestamp

logger = logging.getLogger(__name__)


async def complete(session: Session) -> bool:
    """Amend the turns of a session that an older version wrote; whether it is whole now.

    What cannot be read (the agent is gone, or its state holds what nobody can load) is left for another time.
    """
    if session.history_in_log:
        return True
    try:
        agent = await in_thread(agents.for_reading, session.agent)
        async with process_checkpoints() as checkpoints:
            graph = agent.graph_on(checkpoints.reader())
            state = (await root_state.read(graph, root_state.root_of(session.id))).state
    except EngineError as error:
        logger.warning("The turns of session %s are not amended: %s", session.id, error.message)
        return False
    except DATABASE_UNAVAILABLE:
        raise
    except Exception:  # a state may hold values of the agent's own classes, or of a remote part
        logger.exception("The turns of session %s are not amended.", session.id)
        return False
    await in_thread(_write, session, state_messages.messages_of(state))
    return True


def apply(amendment: Amendment, messages: Sequence[contract.Message]) -> list[contract.Message]:
    """The messages of a turn with what its log lacks."""
    amended: list[contract.Message] = []
    added = {one["after"]: one["message"] for one in amendment.added}
    for message in messages:
        changed: Any = {**message, **amendment.changed.get(message["id"] or "", {})}
        amended.append(changed)
        while (follower := added.pop(amended[-1]["id"], None)) is not None:
            amended.append(follower)
    return amended


def run_with(session: Session, message_id: str) -> Run | None:
    """The run whose amendment adds this message."""
    for amendment in Amendment.objects.filter(run__session=session).select_related("run"):
        if any(one["message"]["id"] == message_id for one in amendment.added):
            return amendment.run
    return None


def _write(session: Session, stored: Sequence[BaseMessage]) -> None:
    turns = _turns(session)
    seed = Seed.objects.filter(session=session).first()
    brought = {message["data"]["id"] for message in seed.messages} if seed else set()
    segments = _segments([m for m in stored if m.id not in brought], {turn.user.id for _, turn in turns})
    amendments = [_amendment(run, turn, segments.get(turn.user.id)) for run, turn in turns]
    with transaction.atomic():
        # Two who read at once would write the same, and one of them would fail.
        if Session.objects.select_for_update(no_key=True).filter(id=session.id).first() is None:
            return  # it was deleted meanwhile
        Amendment.objects.filter(run__session=session).delete()
        Amendment.objects.bulk_create(one for one in amendments if one.changed or one.added)
        _add_keys(session.id)
        Session.objects.filter(id=session.id).update(history_in_log=True)
    session.history_in_log = True


def _turns(session: Session) -> list[tuple[Run, Transcript]]:
    """The last run of each ended turn, and what its log says."""
    found: dict[str, tuple[Run, Transcript]] = {}
    for run in Run.objects.filter(session=session, position__isnull=False).order_by("position"):
        before = found.get(run.message_id)
        events = RunEvent.objects.filter(run=run).order_by("seq")
        found[run.message_id] = run, transcript.fold(run, events, before[1] if before else None)
    return [
        (run, turn)
        for run, turn in found.values()
        if run.status in TERMINAL and run.repaired and run.resolution != Resolution.RETRIED
    ]


def _segments(messages: Sequence[BaseMessage], user_ids: set[str]) -> dict[str, list[BaseMessage]]:
    """What the checkpoint has of each turn, by the id of its user message, which is not among it."""
    segments: dict[str, list[BaseMessage]] = {}
    segment: list[BaseMessage] = []  # what stands before all turns is a summary
    for message in messages:
        if isinstance(message, HumanMessage) and message.id in user_ids:
            segment = segments.setdefault(message.id, [])
        else:
            segment.append(message)
    return segments


def _amendment(run: Run, turn: Transcript, stored: Sequence[BaseMessage] | None) -> Amendment:
    """``stored`` is None if the checkpoint has the turn no longer: then its log is all that is known."""
    amendment = Amendment(run=run)
    by_id = {message.id: message for message in stored or () if message.id}
    for logged in turn.messages:
        message = by_id.get(logged.id)
        if message is not None:
            if (text := clean(text_of(message.content))) != logged.text:
                amendment.changed[logged.id] = {"text": text}
        elif logged.namespace or stored is not None:
            amendment.changed[logged.id] = {"audience": Audience.WORK}
    known = {message.id for message in turn.messages}
    last = turn.user.id
    at = timestamp(run.finished_at or run.created_at)
    for shown in represent(m for m in stored or () if not _is_of_nobody(m, turn)):
        if not shown["id"]:
            continue
        if shown["id"] not in known:
            role = "assistant" if shown["role"] == "user" else shown["role"]  # a node made it
            told = {**shown, "run": str(run.id), "at": at, "role": role}
            amendment.added.append({"after": last, "message": told})
        last = shown["id"]
    return amendment


def _is_of_nobody(message: BaseMessage, turn: Transcript) -> bool:
    """Whether nobody said it: instructions to the model, and the user's words once more."""
    is_repeated = isinstance(message, HumanMessage) and clean(text_of(message.content)) == turn.user.text
    return is_repeated or isinstance(message, SystemMessage)


def _add_keys(session_id: UUID) -> None:
    """Let the messages of the log be found by their ids."""
    events = RunEvent.objects.filter(run__session=session_id, message_key=None, type__in=WHOLE_MESSAGES)
    rows = list(events)
    for row in rows:
        row.message_key = message_key(row.type, row.data)
    RunEvent.objects.bulk_update(rows, ["message_key"], batch_size=500)
