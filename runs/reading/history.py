"""The messages of a session, as everybody is shown them.

A turn whose history is in order is read from the checkpoint, which is what the model gets; a turn that is
active or not in order yet is read from its log, which is what was seen. The two hold the same words.

The runs are read first, with the logs of the turns that need them, then the checkpoint, of which only the
turns are taken that were in order by then. So a run that ends in between is neither missing nor doubled.
Only a retry takes a turn out of the checkpoint that was in order; whether there was one is looked at last.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph.state import CompiledStateGraph

from runs.errors import Invalid
from runs.foundation.database import in_thread
from runs.foundation.limits import TOOL_NAME_LIMIT
from runs.foundation.values import clean, lookup_key, text_of, to_json, truncate_to_fit
from runs.log import transcript
from runs.log.transcript import Transcript
from runs.memory import brought_messages
from runs.memory.normalise import engine_mark
from runs.models import Run, RunEvent, Session, ToolCall
from runs.states import TERMINAL, Effect, EventType, Resolution, ToolStatus
from runs.wire.encoding import timestamp

Data: TypeAlias = dict[str, Any]

# A retry during a read is rare, two in a row are somebody's double click.
_ATTEMPTS = 5


async def read(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    session: Session,
    *,
    limit: int | None = None,
    before: str | None = None,
) -> Data:
    """``{"messages": [Message], "run_id": UUID | None, "last_seq": int}``, oldest first.

    ``run_id`` is the latest run that has left the queue (or the first in the queue if none has), and
    ``last_seq`` how far its log is in ``messages``: from there on a client follows. Queued turns come last.
    ``before`` is the id of a message, ``limit`` how many right before it, or at the end, are wanted. A
    message of no known run, such as those a session began with, has ``run`` and ``at`` null. Raises Invalid
    for a ``before`` that is not in the history.
    """
    config: Any = {"configurable": {"thread_id": str(session.id), "checkpoint_ns": ""}}
    for _ in range(_ATTEMPTS):
        turns = await in_thread(_turns, session.id)
        brought = await in_thread(brought_messages.not_in_checkpoint, session)
        state = await graph.aget_state(config)
        values = state.values if isinstance(state.values, dict) else {}
        if await in_thread(_retried, session.id) == {turn.user_id for turn in turns if turn.is_retried}:
            break
    messages = list(values.get("messages") or ())
    lines = list(_lines(turns, [*brought_messages.to_prepend(brought, messages), *messages]))
    lines = _page(lines, limit, before)
    facts = await in_thread(_facts, {run.id for line in lines for run in line.runs})
    followed = _followed(turns)
    return {
        "messages": [line.represent(facts) for line in lines],
        "run_id": followed.id if followed else None,
        "last_seq": followed.last_seq if followed else 0,
    }


# What is read from the database


@dataclass(slots=True)
class _Turn:
    """The runs that answer one user message: one, or one and those that resumed it."""

    runs: list[Run]
    said: Transcript | None  # from the log; None if the checkpoint has it

    @property
    def user_id(self) -> str:
        return self.runs[0].message_id

    @property
    def is_retried(self) -> bool:
        return self.runs[-1].resolution == Resolution.RETRIED


@dataclass(slots=True)
class _Facts:
    """What the checkpoint does not know of its messages."""

    completed: dict[str, RunEvent]  # by message id
    calls: dict[tuple[UUID, str], ToolCall]  # by run and key of the call


def _turns(session_id: UUID) -> list[_Turn]:
    """The turns of a session in the order of its stream, with the logs of those that need it."""
    turns: dict[str, _Turn] = {}
    runs = list(Run.objects.filter(session=session_id))
    # Those in the queue have no position yet, and come behind all others.
    for run in sorted(runs, key=lambda run: (run.position is None, run.position, run.line)):
        turns.setdefault(run.message_id, _Turn([], None)).runs.append(run)
    for turn in turns.values():
        last = turn.runs[-1]
        if not turn.is_retried and not (last.repaired and last.status in TERMINAL):
            for run in turn.runs:
                # As far as the run's row knew: what was written since comes with the events that follow.
                log = RunEvent.objects.filter(run=run, seq__lte=run.last_seq).order_by("seq")
                turn.said = transcript.fold(run, log, turn.said)
            if turn.said is not None and last.resolution == Resolution.DISMISSED and last.finished_at:
                transcript.add_note(turn.said, last.finished_at)
    return list(turns.values())


def _retried(session_id: UUID) -> set[str]:
    """The ids of the user messages whose turns were taken back."""
    retried = Run.objects.filter(session=session_id, resolution=Resolution.RETRIED)
    return set(retried.values_list("message_id", flat=True))


def _facts(run_ids: set[UUID]) -> _Facts:
    completed = RunEvent.objects.filter(run__in=run_ids, type=EventType.MESSAGE_COMPLETED)
    calls = ToolCall.objects.filter(run__in=run_ids)
    return _Facts(
        completed={event.data["message"]: event for event in completed},
        calls={(call.run_id, call.call_id): call for call in calls},
    )


def _followed(turns: Sequence[_Turn]) -> Run | None:
    runs = [run for turn in turns for run in turn.runs]
    left_queue = [run for run in runs if run.position is not None]
    return max(left_queue, key=lambda run: run.position or 0) if left_queue else next(iter(runs), None)


# What is shown of it


@dataclass(slots=True)
class _Logged:
    """A message of a turn that is read from its log."""

    turn: _Turn
    said: transcript.Message | transcript.UserMessage

    @property
    def id(self) -> str | None:
        return self.said.id

    @property
    def runs(self) -> list[Run]:
        return self.turn.runs

    def represent(self, facts: _Facts) -> Data:
        said = self.said
        if isinstance(said, transcript.UserMessage):
            return _message(said.id, said.run_id, "user", said.text, at=said.at)
        runs = [run.id for run in self.turn.runs]
        calls = [_logged_call(call, _row(facts, runs, call.id, call.message)) for call in said.calls]
        return _message(
            said.id, said.run_id, said.role, said.text, said.status, calls, usage=said.usage, at=said.at
        )


@dataclass(slots=True)
class _Stored:
    """A message of the checkpoint, with the results of its calls."""

    turn: _Turn | None
    message: BaseMessage
    results: dict[str, ToolMessage]

    @property
    def id(self) -> str | None:
        return self.message.id

    @property
    def runs(self) -> list[Run]:
        return self.turn.runs if self.turn else []

    def represent(self, facts: _Facts) -> Data:
        message = self.message
        text = clean(text_of(message.content))
        runs = self.runs
        if isinstance(message, HumanMessage):
            run_id, at = (runs[0].id, runs[0].created_at) if runs else (None, None)
            return _message(self.id, run_id, "user", text, at=at)
        event = facts.completed.get(self.id or "")
        run_id = event.run_id if event else (runs[-1].id if runs else None)
        at = event.at if event else (runs[-1].finished_at or runs[-1].created_at if runs else None)
        if not isinstance(message, AIMessage):
            return _message(self.id, run_id, "system", text, at=at)
        calls = [
            _stored_call(call, self.results.get(call["id"] or ""), self._row(facts, call["id"] or ""))
            for call in message.tool_calls
        ]
        usage = event.data.get("usage") if event else None
        if usage is None and (counted := message.usage_metadata):
            usage = {key: counted[key] for key in ("input_tokens", "output_tokens")}
        status = "interrupted" if engine_mark(message) else "complete"
        return _message(self.id, run_id, "assistant", text, status, calls, usage=usage, at=at)

    def _row(self, facts: _Facts, call_id: str) -> ToolCall | None:
        return _row(facts, [run.id for run in self.runs], call_id, self.id or "")


_Line: TypeAlias = _Logged | _Stored


def _lines(turns: Sequence[_Turn], messages: Sequence[BaseMessage]) -> Iterator[_Line]:
    """All that is shown, in order: what is of no known turn first, then turn by turn."""
    by_user = {turn.user_id: turn for turn in turns}
    elsewhere: list[_Stored] = []
    segments: dict[str, list[_Stored]] = {}
    turn: _Turn | None = None
    segment = elsewhere
    for message in messages:
        if isinstance(message, HumanMessage) and message.id in by_user:
            turn = by_user[message.id]
            segment = segments.setdefault(turn.user_id, [])
        if isinstance(message, ToolMessage):
            asking = (line for line in reversed(segment) if _asks(line.message, message.tool_call_id))
            if (line := next(asking, None)) is not None:
                line.results.setdefault(message.tool_call_id, message)
        elif _is_shown(message):
            segment.append(_Stored(turn, message, {}))
    yield from elsewhere
    for turn in turns:
        if turn.is_retried:
            continue
        if turn.said is None:
            yield from segments.get(turn.user_id, ())
        else:
            yield _Logged(turn, turn.said.user)
            for said in turn.said.messages:
                yield _Logged(turn, said)


def _asks(message: BaseMessage, call_id: str) -> bool:
    return isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls)


def _is_shown(message: BaseMessage) -> bool:
    if isinstance(message, AIMessage):
        return bool(message.tool_calls or text_of(message.content).strip())
    return isinstance(message, HumanMessage | SystemMessage)


def _page(lines: list[_Line], limit: int | None, before: str | None) -> list[_Line]:
    if before is not None:
        end = next((index for index, line in enumerate(lines) if line.id == before), None)
        if end is None:
            raise Invalid('"before" names no message of this session.')
        lines = lines[:end]
    return lines if limit is None else lines[max(len(lines) - limit, 0) :]


# The shapes of the wire contract


def _message(
    message_id: str | None,
    run_id: UUID | str | None,
    role: str,
    text: str,
    status: str = "complete",
    calls: Sequence[Data] = (),
    *,
    usage: Data | None = None,
    at: datetime | None,
) -> Data:
    return {
        "id": message_id,
        "run": str(run_id) if run_id else None,
        "role": role,
        "text": text,
        "status": status,
        "tool_calls": list(calls),
        "usage": usage,
        "at": timestamp(at) if at else None,
    }


def _row(facts: _Facts, runs: Sequence[UUID], call_id: str, message_id: str) -> ToolCall | None:
    """The row of a call: of a resumed turn that of the last run that had to do with it."""
    rows = (facts.calls.get((run, lookup_key(call_id))) for run in reversed(runs))
    # Some models number the calls of each message from the start; a row has room for one of them.
    return next((row for row in rows if row and row.message_id in ("", lookup_key(message_id))), None)


def _logged_call(call: transcript.LoggedCall, row: ToolCall | None) -> Data:
    return {
        "id": call.id,
        "name": call.name,
        "args": call.args,
        "status": call.status,
        "result": call.result,
        "error": call.error,
        # The one thing that may change after the end, when a straggler ends.
        "effect": row.effect if row and row.effect and call.effect else call.effect,
        "duration_ms": row.duration_ms if row and call.duration_ms is None else call.duration_ms,
    }


def _stored_call(asked: Any, result: ToolMessage | None, row: ToolCall | None) -> Data:
    status, effect = _outcome(result)
    text = clean(text_of(result.content)) if result else None
    call = {
        "id": asked["id"],
        "name": truncate_to_fit(asked["name"], TOOL_NAME_LIMIT),
        "args": to_json(asked["args"]),
        "status": status,
        "result": text if status == ToolStatus.COMPLETED else None,
        "error": text if status == ToolStatus.FAILED else None,
        "effect": effect,
        "duration_ms": None,
    }
    if row is None:
        return call
    call["duration_ms"] = row.duration_ms
    # A crash may come between a result and its event; then the result is there all the same, and counts.
    came = result is not None and not engine_mark(result)
    if row.status != ToolStatus.RUNNING and (row.was_answered or not came):
        call |= {"status": row.status, "result": row.result, "error": row.error}
        call["effect"] = row.effect or effect
    return call


def _outcome(result: ToolMessage | None) -> tuple[str, str]:
    """Status and effect of a call as far as its result in the history tells them."""
    if result is None:
        return ToolStatus.CANCELLED, Effect.NONE
    if status := engine_mark(result):
        return status, Effect.UNKNOWN
    return (ToolStatus.FAILED if result.status == "error" else ToolStatus.COMPLETED), Effect.DONE
