"""The history of a session, as clients, pages and the console show it.

A repaired turn is read from the checkpoint, which is what the model gets. An active or unrepaired turn is
read from its log, which is what was shown. Both have the same texts.

The runs are read first, with the logs of their turns that need them. Then the checkpoint is read, and of it
only the turns that were repaired before. So a run that ends in between is neither missing nor doubled. Only a
retry removes a repaired turn from the checkpoint. So retries are read last, and if there is a new one, all is
read again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph.state import CompiledStateGraph

from runs import agents
from runs.errors import Invalid, NotFound
from runs.foundation.database import in_thread
from runs.foundation.limits import TOOL_NAME_LIMIT
from runs.foundation.masking import masked
from runs.foundation.values import clean, lookup_key, text_of, to_json, truncate_to_fit
from runs.live import follow
from runs.log import transcript
from runs.log.transcript import Transcript
from runs.memory import brought_messages
from runs.memory.checkpoints import process_checkpoints
from runs.memory.normalise import engine_mark
from runs.models import Run, RunEvent, Session, ToolCall
from runs.states import TERMINAL, Effect, EventType, Resolution, ToolStatus
from runs.wire import contract, representations
from runs.wire.encoding import timestamp

Data: TypeAlias = dict[str, Any]

# How often the history is read when a retry comes in between each time.
_ATTEMPTS = 5


async def read(session: Session, *, limit: int | None, before: str | None) -> contract.History:
    """``{"session": Session, "messages": [Message], "run": Run | None}`` as of one moment, oldest first.

    ``run`` is the latest run; its ``last_seq`` is that of ``messages``, so a client that follows from there
    misses nothing. ``limit`` and ``before`` as in ``read_messages``. Raises NotFound and Invalid.
    """
    agent = await in_thread(agents.for_reading, session.agent)
    async with process_checkpoints() as checkpoints:
        graph = agent.graph_on(checkpoints.reader())
        found = await read_messages(graph, session, limit=limit, before=before)
    snapshot, run = await in_thread(_snapshots, session.id, found["run_id"])
    if run is not None:
        run["last_seq"] = found["last_seq"]
    return {"session": snapshot, "messages": found["messages"], "run": run}


def _snapshots(session_id: UUID, run_id: UUID | None) -> tuple[contract.Session, contract.Run | None]:
    snapshot = follow.snapshot(session_id)
    if snapshot is None:
        raise NotFound
    run = Run.objects.filter(id=run_id).first() if run_id else None
    return snapshot, representations.run(run) if run else None


async def read_messages(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    session: Session,
    *,
    limit: int | None = None,
    before: str | None = None,
) -> Data:
    """``{"messages": [Message], "run_id": UUID | None, "last_seq": int}``, oldest first.

    ``run_id`` is the latest run that has left the queue, or if none has, the first in the queue. ``last_seq``
    is the last event of its log that is in ``messages``. Queued turns come last.
    ``limit``: at most so many messages, the last ones. ``before``: only messages before the one with this id.
    A message of no run, such as one that a client brought along, has ``run`` and ``at`` null.
    Raises Invalid for a ``before`` that is not in the history.
    """
    config: Any = {"configurable": {"thread_id": str(session.id), "checkpoint_ns": ""}}
    for _ in range(_ATTEMPTS):
        chains = await in_thread(_chains, session.id)
        brought = await in_thread(brought_messages.not_in_checkpoint, session)
        state = await graph.aget_state(config)
        values = state.values if isinstance(state.values, dict) else {}
        if await in_thread(_retried, session.id) == {chain.user_id for chain in chains if chain.is_retried}:
            break
    messages = list(values.get("messages") or ())
    shown = list(_shown(chains, [*brought_messages.to_prepend(brought, messages), *messages]))
    shown = _page(shown, limit, before)
    rows = await in_thread(_rows, {run.id for message in shown for run in message.runs})
    followed = _followed(chains)
    return {
        "messages": [message.represent(rows) for message in shown],
        "run_id": followed.id if followed else None,
        "last_seq": followed.last_seq if followed else 0,
    }


# From the database


@dataclass(slots=True)
class _Chain:
    """A run and those that resume it, one after the other: they answer one user message."""

    runs: list[Run]
    transcript: Transcript | None = None  # None if it is read from the checkpoint

    @property
    def user_id(self) -> str:
        return self.runs[0].message_id

    @property
    def is_retried(self) -> bool:
        return self.runs[-1].resolution == Resolution.RETRIED


@dataclass(slots=True)
class _Rows:
    """What only the database knows of the checkpoint's messages."""

    completed: dict[str, RunEvent]  # by message id
    calls: dict[tuple[UUID, str], ToolCall]  # by run and lookup key of the call


def _chains(session_id: UUID) -> list[_Chain]:
    """The chains of a session in the order of its stream, with the transcripts of those that need one."""
    chains: dict[str, _Chain] = {}
    runs = list(Run.objects.filter(session=session_id))
    # Queued runs have no position yet, and come last.
    for run in sorted(runs, key=lambda run: (run.position is None, run.position, run.queue_place)):
        chains.setdefault(run.message_id, _Chain([])).runs.append(run)
    for chain in chains.values():
        last = chain.runs[-1]
        if not chain.is_retried and not (last.repaired and last.status in TERMINAL):
            for run in chain.runs:
                # Up to the row's last_seq: the client gets later events when it follows from there.
                log = RunEvent.objects.filter(run=run, seq__lte=run.last_seq).order_by("seq")
                chain.transcript = transcript.fold(run, log, chain.transcript)
            if chain.transcript is not None and last.resolution == Resolution.DISMISSED and last.finished_at:
                transcript.add_note(chain.transcript, last.finished_at)
    return list(chains.values())


def _retried(session_id: UUID) -> set[str]:
    """The user message ids of retried turns."""
    retried = Run.objects.filter(session=session_id, resolution=Resolution.RETRIED)
    return set(retried.values_list("message_id", flat=True))


def _rows(run_ids: set[UUID]) -> _Rows:
    completed = RunEvent.objects.filter(run__in=run_ids, type=EventType.MESSAGE_COMPLETED)
    calls = ToolCall.objects.filter(run__in=run_ids)
    return _Rows(
        completed={event.data["message"]: event for event in completed},
        calls={(call.run_id, call.call_id): call for call in calls},
    )


def _followed(chains: Sequence[_Chain]) -> Run | None:
    runs = [run for chain in chains for run in chain.runs]
    left_queue = [run for run in runs if run.position is not None]
    return max(left_queue, key=lambda run: run.position or 0) if left_queue else next(iter(runs), None)


# In order


@dataclass(slots=True)
class _LoggedMessage:
    """A message of a turn that is read from its log."""

    chain: _Chain
    message: transcript.Message | transcript.UserMessage

    @property
    def id(self) -> str | None:
        return self.message.id

    @property
    def runs(self) -> list[Run]:
        return self.chain.runs

    def represent(self, rows: _Rows) -> contract.Message:
        logged = self.message
        if isinstance(logged, transcript.UserMessage):
            return _message(logged.id, logged.run_id, "user", logged.text, at=logged.at)
        runs = [run.id for run in self.chain.runs]
        calls = [_logged_call(call, _call_row(rows, runs, call.id, call.message)) for call in logged.calls]
        return _message(
            logged.id,
            logged.run_id,
            logged.role,
            logged.text,
            logged.status,
            calls,
            usage=logged.usage,
            at=logged.at,
        )


@dataclass(slots=True)
class _CheckpointMessage:
    """A message of the checkpoint, with the results of its calls."""

    chain: _Chain | None
    message: BaseMessage
    results: dict[str, ToolMessage]

    @property
    def id(self) -> str | None:
        return self.message.id

    @property
    def runs(self) -> list[Run]:
        return self.chain.runs if self.chain else []

    def represent(self, rows: _Rows) -> contract.Message:
        message = self.message
        text = clean(text_of(message.content))
        runs = self.runs
        if isinstance(message, HumanMessage):
            run_id, at = (runs[0].id, runs[0].created_at) if runs else (None, None)
            return _message(self.id, run_id, "user", text, at=at)
        event = rows.completed.get(self.id or "")
        run_id = event.run_id if event else (runs[-1].id if runs else None)
        at = event.at if event else (runs[-1].finished_at or runs[-1].created_at if runs else None)
        if not isinstance(message, AIMessage):
            return _message(self.id, run_id, "system", text, at=at)
        calls = [
            _stored_call(call, self.results.get(call["id"] or ""), self._call_row(rows, call["id"] or ""))
            for call in message.tool_calls
        ]
        usage = event.data.get("usage") if event else None
        if usage is None and (counted := message.usage_metadata):
            usage = {key: counted[key] for key in ("input_tokens", "output_tokens")}
        status = "interrupted" if engine_mark(message) else "complete"
        return _message(self.id, run_id, "assistant", text, status, calls, usage=usage, at=at)

    def _call_row(self, rows: _Rows, call_id: str) -> ToolCall | None:
        return _call_row(rows, [run.id for run in self.runs], call_id, self.id or "")


_Shown: TypeAlias = _LoggedMessage | _CheckpointMessage


def _shown(chains: Sequence[_Chain], messages: Sequence[BaseMessage]) -> Iterator[_Shown]:
    """All messages that are shown, in order: those of no turn first, then turn by turn."""
    by_user = {chain.user_id: chain for chain in chains}
    of_no_chain: list[_CheckpointMessage] = []
    segments: dict[str, list[_CheckpointMessage]] = {}
    chain: _Chain | None = None
    segment = of_no_chain
    for message in messages:
        if isinstance(message, HumanMessage) and message.id in by_user:
            chain = by_user[message.id]
            segment = segments.setdefault(chain.user_id, [])
        if isinstance(message, ToolMessage):
            calling = (shown for shown in reversed(segment) if _calls(shown.message, message.tool_call_id))
            if (shown := next(calling, None)) is not None:
                shown.results.setdefault(message.tool_call_id, message)
        elif _is_shown(message):
            segment.append(_CheckpointMessage(chain, message, {}))
    yield from of_no_chain
    for chain in chains:
        if chain.is_retried:
            continue
        if chain.transcript is None:
            yield from segments.get(chain.user_id, ())
        else:
            yield _LoggedMessage(chain, chain.transcript.user)
            yield from (_LoggedMessage(chain, message) for message in chain.transcript.messages)


def _calls(message: BaseMessage, call_id: str) -> bool:
    return isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls)


def _is_shown(message: BaseMessage) -> bool:
    if isinstance(message, AIMessage):
        return bool(message.tool_calls or text_of(message.content).strip())
    return isinstance(message, HumanMessage | SystemMessage)


def _page(shown: list[_Shown], limit: int | None, before: str | None) -> list[_Shown]:
    if before is not None:
        end = next((index for index, message in enumerate(shown) if message.id == before), None)
        if end is None:
            raise Invalid('"before" names no message of this session.')
        shown = shown[:end]
    return shown if limit is None else shown[max(len(shown) - limit, 0) :]


# Objects of the wire contract


def _message(
    message_id: str | None,
    run_id: UUID | str | None,
    role: str,
    text: str,
    status: str = "complete",
    calls: Sequence[contract.ToolCall] = (),
    *,
    usage: contract.Usage | None = None,
    at: datetime | None,
) -> contract.Message:
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


def _call_row(rows: _Rows, runs: Sequence[UUID], call_id: str, message_id: str) -> ToolCall | None:
    """The row of a call; in a chain, that of the last run that has one."""
    found = (rows.calls.get((run, lookup_key(call_id))) for run in reversed(runs))
    # Some models number the calls of each message from the start. Such calls of one run share a row.
    return next((row for row in found if row and row.message_id in ("", lookup_key(message_id))), None)


def _logged_call(call: transcript.LoggedCall, row: ToolCall | None) -> contract.ToolCall:
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


def _stored_call(asked: Any, result: ToolMessage | None, row: ToolCall | None) -> contract.ToolCall:
    status, effect = _outcome(result)
    text = clean(text_of(result.content)) if result else None
    call: contract.ToolCall = {
        "id": asked["id"],
        "name": truncate_to_fit(asked["name"], TOOL_NAME_LIMIT),
        "args": to_json(asked["args"]),
        "status": status,
        "result": text if status == ToolStatus.COMPLETED else None,
        "error": masked(text) if text and status == ToolStatus.FAILED else None,
        "effect": effect,
        "duration_ms": None,
    }
    if row is None:
        return call
    call["duration_ms"] = row.duration_ms
    # After a crash between a result and its event, only the checkpoint has the result. It counts.
    is_real = result is not None and not engine_mark(result)
    if row.status != ToolStatus.RUNNING and (row.was_answered or not is_real):
        call |= {"status": row.status, "result": row.result, "error": row.error}
        call["effect"] = row.effect or effect
    return call


def _outcome(result: ToolMessage | None) -> tuple[str, str]:
    """Status and effect of a call, by its result in the checkpoint."""
    if result is None:
        return ToolStatus.CANCELLED, Effect.NONE
    if status := engine_mark(result):
        return status, Effect.UNKNOWN
    return (ToolStatus.FAILED if result.status == "error" else ToolStatus.COMPLETED), Effect.DONE
