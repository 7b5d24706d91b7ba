"""The history of a session, as clients, pages and the console show it: a fold of the log.

A graph may trim, summarise or rewrite what it remembers. That changes what the model reads, and no word of
what was said. So the checkpoint is not read here. What only the checkpoints of older versions knew of a turn
stands in its amendment (``runs.memory.amendments``).

Turns are read from the last one backwards, and no more of them than a page needs. So a page costs the same in
a session of any length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import QuerySet

from runs.errors import Invalid, NotFound
from runs.foundation.database import in_thread
from runs.foundation.values import lookup_key
from runs.live import follow
from runs.log import transcript
from runs.log.events import WHOLE_MESSAGES
from runs.log.transcript import Transcript
from runs.memory import amendments, brought_messages
from runs.memory.representations import represent
from runs.models import Amendment, Run, RunEvent, Session, ToolCall
from runs.states import TERMINAL, Audience, EventType, Resolution, RunStatus
from runs.wire import contract, representations
from runs.wire.encoding import timestamp

Data: TypeAlias = dict[str, Any]

# Turns that are read at a time: for a page that asks for as many messages, and for all of a session.
_BATCH = 50
_LARGE_BATCH = 500


async def read(
    session: Session, *, limit: int | None, before: str | None, audience: Audience | None = Audience.ANSWER
) -> contract.History:
    """``{"session": Session, "messages": [Message], "run": Run | None}`` as of one moment, oldest first.

    ``run`` is the latest run; its ``last_seq`` is that of ``messages``, so a client that follows from there
    misses nothing. The rest as in ``read_messages``. Raises NotFound and Invalid.
    """
    await amendments.complete(session)
    return await in_thread(_read, session, limit, before, audience)


def _read(
    session: Session, limit: int | None, before: str | None, audience: Audience | None
) -> contract.History:
    found = read_messages(session, limit=limit, before=before, audience=audience)
    snapshot = follow.snapshot(session.id)
    if snapshot is None:
        raise NotFound
    run = Run.objects.filter(id=found["run_id"]).first() if found["run_id"] else None
    represented = representations.run(run) if run else None
    if represented is not None:
        represented["last_seq"] = found["last_seq"]
    return {"session": snapshot, "messages": found["messages"], "run": represented}


def read_messages(
    session: Session,
    *,
    limit: int | None = None,
    before: str | None = None,
    audience: Audience | None = Audience.ANSWER,
) -> Data:
    """``{"messages": [Message], "run_id": UUID | None, "last_seq": int}``, oldest first.

    ``run_id`` is the latest run that has left the queue, or if none has, the first in the queue. ``last_seq``
    is the last event of its log that is in ``messages``. Queued turns come last.
    ``limit``: at most so many messages, the last ones. ``before``: only messages before the one with this id.
    ``audience``: only messages for this one; None for all.
    A message of no run, such as one that a client brought along, has ``run`` and ``at`` null.
    Raises Invalid for a ``before`` that is not in the history.
    """
    latest = _latest(session.id)
    messages: list[contract.Message] = []  # newest first
    is_behind = before is not None
    begin = _place(session, before) if before is not None else None
    turns = _turns_backwards(session.id, begin, limit) if before is None or begin is not None else iter(())
    for turn in turns:
        if latest is not None:
            latest = next((run for run in turn.runs if run.id == latest.id), latest)
        for message in reversed(turn.messages):
            if not is_behind and audience in (None, message["audience"]):
                messages.append(message)
            is_behind = is_behind and message["id"] != before
        if limit is not None and len(messages) >= limit:
            break
    else:
        for message in reversed(represent(brought_messages.of(session))):
            if not is_behind:
                messages.append(message)
            is_behind = is_behind and message["id"] != before
    if is_behind:
        raise Invalid('"before" names no message of this session.')
    messages = messages[:limit]
    return {
        "messages": messages[::-1],
        "run_id": latest.id if latest else None,
        "last_seq": latest.last_seq if latest else 0,
    }


# Turns


@dataclass(slots=True)
class _Turn:
    """A run and those that resume it, one after the other: they answer one user message."""

    runs: list[Run]
    messages: list[contract.Message]


def _latest(session_id: UUID) -> Run | None:
    runs = Run.objects.filter(session=session_id)
    return (
        runs.filter(position__isnull=False).order_by("-position").first()
        or runs.order_by("queue_place").first()
    )


def _turns_backwards(session_id: UUID, begin: "Run | None", limit: int | None) -> Iterator[_Turn]:
    """The turns of a session, the last one first; from the turn of ``begin`` backwards if it is given."""
    firsts = Run.objects.filter(session=session_id, resumes=None)
    queued = firsts.filter(position=None).order_by("-queue_place")
    left_queue = firsts.filter(position__isnull=False).order_by("-position")
    if begin is not None and begin.position is None:
        queued = queued.filter(queue_place__lte=begin.queue_place)
    elif begin is not None:
        queued, left_queue = queued.none(), left_queue.filter(position__lte=begin.position)
    waiting = list(queued)
    yield from _turns(waiting)
    # What leaves the queue meanwhile is not read twice.
    left_queue = left_queue.exclude(id__in=[run.id for run in waiting])
    size = _LARGE_BATCH if limit is None else min(limit, _BATCH)
    while batch := list(left_queue[:size]):
        yield from _turns(batch)
        left_queue = left_queue.filter(position__lt=batch[-1].position)


def _turns(firsts: Sequence[Run]) -> Iterator[_Turn]:
    """The turns that begin with these runs, in the same order."""
    chains = {run.id: [run] for run in firsts}
    last = {run.id: run for run in firsts}
    of = {run.id: run.id for run in firsts}
    while found := list(Run.objects.filter(resumes__in=last).order_by("queue_place")):
        for run in found:
            of[run.id] = of[run.resumes_id or run.id]
            chains[of[run.id]].append(run)
        last = {run.id: run for run in found}
    shown = [chain for chain in chains.values() if chain[-1].resolution != Resolution.RETRIED]
    read = _Rows([run for chain in shown for run in chain])
    for chain in shown:
        yield _Turn(chain, read.messages(chain))


class _Rows:
    """What the database has of some runs beside their own rows."""

    def __init__(self, runs: Sequence[Run]) -> None:
        ids = [run.id for run in runs]
        ended = [run for run in runs if run.status in TERMINAL]
        self._events: dict[UUID, list[RunEvent]] = {run.id: [] for run in runs}
        for event in _whole(RunEvent.objects.filter(run__in=[run.id for run in ended])):
            self._events[event.run_id].append(event)
        cut = {run.id for run in ended if _has_open_message(self._events[run.id])}
        for run in runs:
            if run.status not in TERMINAL or run.id in cut:
                self._events[run.id] = list(RunEvent.objects.filter(run=run).order_by("seq"))
        self._calls = {(call.run_id, call.call_id): call for call in ToolCall.objects.filter(run__in=ids)}
        self._amendments = {one.run_id: one for one in Amendment.objects.filter(run__in=ids)}

    def messages(self, chain: Sequence[Run]) -> list[contract.Message]:
        """What was said in the turn of these runs."""
        turn: Transcript | None = None
        for run in chain:
            # Up to the row's last_seq: the client gets later events when it follows from there.
            log = (event for event in self._events[run.id] if event.seq <= run.last_seq)
            turn = transcript.fold(run, log, turn)
        if turn is None:
            return []
        last = chain[-1]
        if last.finished_at and (last.status != RunStatus.INTERRUPTED or last.resolution is not None):
            transcript.add_note(turn, last.finished_at)
        user = turn.user
        said = [_message(user.id, user.run_id, "user", user.text, at=user.at)]
        said += [self._represent(chain, message) for message in turn.messages]
        for run in chain:
            if (amendment := self._amendments.get(run.id)) is not None:
                said = amendments.apply(amendment, said)
        return said

    def _represent(self, chain: Sequence[Run], logged: transcript.Message) -> contract.Message:
        return _message(
            logged.id,
            logged.run_id,
            logged.role,
            logged.text,
            logged.status,
            [_call(call, self._row(chain, call)) for call in logged.calls],
            audience=logged.audience,
            usage=logged.usage,
            at=logged.at,
        )

    def _row(self, chain: Sequence[Run], call: transcript.LoggedCall) -> ToolCall | None:
        """The row of a call; in a chain, that of the last run that has one."""
        found = (self._calls.get((run.id, lookup_key(call.id))) for run in reversed(chain))
        # Some models number the calls of each message from the start. Such calls of one run share a row.
        return next((row for row in found if row and row.message_id in ("", lookup_key(call.message))), None)


def _whole(events: QuerySet[RunEvent]) -> QuerySet[RunEvent]:
    """Without the pieces of messages. SQLite uses a partial index only if a statement repeats its words."""
    return events.extra(where=["NOT (runs_runevent.type = 'message.delta')"]).order_by("run", "seq")


def _has_open_message(events: Sequence[RunEvent]) -> bool:
    """Whether a message has no end, as in older logs of runs whose worker was lost."""
    of_type: dict[str, set[str]] = {EventType.MESSAGE_STARTED: set(), EventType.MESSAGE_COMPLETED: set()}
    for event in events:
        if event.type in of_type:
            of_type[event.type].add(event.data["message"])
    return bool(of_type[EventType.MESSAGE_STARTED] - of_type[EventType.MESSAGE_COMPLETED])


def _place(session: Session, message_id: str) -> Run | None:
    """The first run of the turn that has this message; None if no run has it."""
    events = RunEvent.objects.filter(run__session=session.id)
    event = (
        events.filter(message_key=lookup_key(message_id)).first()
        or events.filter(message_key=None, type__in=WHOLE_MESSAGES, data__message=message_id).first()
    )
    run_id = event.run_id if event else transcript.run_of_note(message_id)
    run = Run.objects.filter(session=session.id, id=run_id).first() if run_id else None
    run = run or amendments.run_with(session, message_id)
    while run is not None and run.resumes is not None:
        run = run.resumes
    return run


# Objects of the wire contract


def _message(
    message_id: str | None,
    run_id: UUID | str | None,
    role: str,
    text: str,
    status: str = "complete",
    calls: Sequence[contract.ToolCall] = (),
    *,
    audience: Audience = Audience.ANSWER,
    usage: contract.Usage | None = None,
    at: datetime | None,
) -> contract.Message:
    return {
        "id": message_id,
        "run": str(run_id) if run_id else None,
        "role": role,
        "text": text,
        "status": status,
        "audience": audience,
        "tool_calls": list(calls),
        "usage": usage,
        "at": timestamp(at) if at else None,
    }


def _call(call: transcript.LoggedCall, row: ToolCall | None) -> contract.ToolCall:
    return {
        "id": call.id,
        "name": call.name,
        "args": call.args,
        "status": call.status,
        "result": call.result,
        "error": call.error,
        # The effect may change after the run's end, when a straggler ends.
        "effect": row.effect if row and row.effect and call.effect else call.effect,
        "duration_ms": row.duration_ms if row and call.duration_ms is None else call.duration_ms,
    }
