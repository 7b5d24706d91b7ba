"""Group commit: the events of all executions of this process are committed together, and then published.

Under load batches grow by themselves, so a token costs less. Without load an event is committed at once.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from runs import metrics, statements
from runs.errors import Fenced
from runs.foundation.database import call_with_connection
from runs.foundation.tasks import end
from runs.log import tool_calls
from runs.log.events import insert, message_key, publish
from runs.models import Run
from runs.states import EventType, RunStatus
from runs.wire import encoding

logger = logging.getLogger(__name__)

# Text deltas after the first one of a message wait so many seconds for others, which saves rows.
_DELAY = 0.025
# Under load they wait longer: so many times as long as the last batch took, up to a limit.
_DELAY_FACTOR = 4
_LONGEST_DELAY = 0.1
# Seconds between two commits on SQLite, which has one writer at a time: the others need their turn.
_GAP = 0.005
# Characters that are not committed yet. With more than these an execution waits for the writer.
_BUFFER_LIMIT = 256 * 1024


class Outcome(StrEnum):
    """The result of one execution's part of a batch."""

    COMMITTED = "committed"
    FENCED = "fenced"  # the run is not the execution's any more; nothing was written
    UNSTORABLE = "unstorable"  # the data itself cannot be stored


@dataclass(slots=True)
class _Delta:
    """Text of a message that is not committed yet."""

    message: str
    pieces: list[str]


@dataclass(slots=True)
class _Part:
    """What one execution adds to a batch."""

    log: "RunLog"
    entries: list[tuple[EventType, dict[str, Any] | _Delta]]
    counts: Counter[str]
    waiters: list[asyncio.Future[None]]
    kept: list[tuple[str, bytes]]  # (call id, what the call has given)
    encoded: list[tuple[str, str]] = field(default_factory=list)  # (type, data as JSON)
    first: int = 0
    at: datetime = field(default_factory=timezone.now)


class RunLog:
    """The log as one execution writes it: ``emit`` and ``count`` do not wait, ``flush`` does.

    ``failure`` is Fenced when the run is not the execution's any more, and a ValueError when an event cannot
    be stored. From then on all events are dropped, and ``flush`` and ``room`` raise it.

    ``gated_tools`` are the names of the tools whose starts are committed before they begin.
    """

    gated_tools: Collection[str] = ()

    def __init__(
        self,
        writer: "EventWriter",
        run_id: UUID,
        session_id: UUID,
        position: int,
        claim: int,
        batches: int,
        started_at: datetime,
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.position = position
        self.claim = claim
        self.batches = batches
        self.failure: BaseException | None = None
        self._started_at = started_at
        self._writer = writer
        self._entries: list[tuple[EventType, dict[str, Any] | _Delta]] = []
        self._counts: Counter[str] = Counter()
        self._waiters: list[asyncio.Future[None]] = []
        self._kept: list[tuple[str, bytes]] = []
        self._delta: _Delta | None = None
        self._size = 0
        self._started: set[str] = set()
        self._room = asyncio.Event()
        self._room.set()

    def emit(self, type: EventType, data: dict[str, Any]) -> None:
        """Append an event. Consecutive deltas of one message are joined while they are not committed."""
        if self.failure is not None:
            return
        if type is EventType.MESSAGE_DELTA:
            message, text = data["message"], data["text"]
            self._size += len(text)
            if self._delta is not None and self._delta.message == message:
                self._delta.pieces.append(text)
            else:
                self._delta = _Delta(message, [text])
                self._entries.append((type, self._delta))
            if message in self._started:
                self._writer.wake(urgent=False)
            else:
                if not self._started:
                    elapsed = timezone.now() - self._started_at
                    self._counts["first_token_ms"] = max(int(elapsed.total_seconds() * 1000), 0)
                self._started.add(message)
                self._writer.wake(urgent=True)
        else:
            self._delta = None
            self._entries.append((type, data))
            self._size += 200
            self._writer.wake(urgent=True)
        if self._size > _BUFFER_LIMIT:
            self._room.clear()

    def count(self, **deltas: int) -> None:
        """Add to these columns of the run, in the transaction of the events that are emitted around it."""
        if self.failure is None:
            for name, delta in deltas.items():  # several times as fast as the Counter's own update
                self._counts[name] += delta
            self._writer.wake_later()

    def keep(self, call_id: str, dumped: bytes) -> None:
        """Keep what a tool call has given, in the transaction of the event of its end, which was emitted."""
        if self.failure is None:
            self._kept.append((call_id, dumped))

    @property
    def has_room(self) -> bool:
        """Whether the execution may go on emitting. If not, it awaits ``room()`` first."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until the writer has caught up. Raises ``failure``."""
        await self._room.wait()
        self._check()

    async def flush(self) -> None:
        """Wait until all that was emitted is committed. Raises ``failure``."""
        self._check()
        if not self._entries and not self._counts and self not in self._writer.committing:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._writer.wake(urgent=True)
        await waiter

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def take(self) -> _Part | None:
        """For the writer: everything that is pending, or None."""
        if not self._entries and not self._counts and not self._waiters:
            return None
        part = _Part(self, self._entries, self._counts, self._waiters, self._kept)
        self._entries, self._counts, self._waiters, self._kept = [], Counter(), [], []
        self._delta = None
        self._size = 0
        return part

    def finish(self, part: _Part, failure: BaseException | None) -> None:
        """For the writer: ``part`` is committed or, with a ``failure``, never will be."""
        if failure is not None:
            self.failure = failure
            self._entries, self._counts, self._kept = [], Counter(), []
            self._size = 0
            part.waiters.extend(self._waiters)
            self._waiters = []
        for waiter in part.waiters:
            if waiter.done():
                continue
            if failure is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(failure)
        if self._size <= _BUFFER_LIMIT:
            self._room.set()


class EventWriter:
    """Commits the events of all executions together. A process has one, on its event loop."""

    def __init__(self) -> None:
        self.committing: set[RunLog] = set()
        self._logs: set[RunLog] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="event-writer")
        self._something = asyncio.Event()
        self._urgent = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None  # for counts without an event
        self.tasks: list[asyncio.Task[None]] = []  # the side loop
        self._commit: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the side loop."""
        self.tasks = [asyncio.create_task(self._write_forever(), name="event writer")]

    async def close(self) -> None:
        """Write what is left and stop."""
        await end(self.tasks)
        if self._commit is not None:
            await self._commit
        await self.step()
        self._thread.shutdown(wait=False)

    def open(self, run: Run) -> RunLog:
        """A log for the execution of a run that was just claimed."""
        position = run.position or 0  # a claimed run has one
        log = RunLog(
            self, run.id, run.session_id, position, run.claim, run.batches, run.started_at or run.created_at
        )
        self._logs.add(log)
        return log

    def release(self, log: RunLog) -> None:
        """Forget the log of an execution that has ended."""
        self._logs.discard(log)

    def wake(self, *, urgent: bool) -> None:
        """Something is pending. If it is urgent, it does not wait for other events."""
        self._something.set()
        if urgent:
            self._urgent.set()

    def wake_later(self) -> None:
        """A count is pending: it is written with the next event, or after a while without one."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(_DELAY, self._something.set)

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        last, delay = loop.time(), _DELAY
        gap = _GAP if connection.vendor == "sqlite" else 0.0
        while True:
            await self._something.wait()
            if (rest := last + gap - loop.time()) > 0:
                await asyncio.sleep(rest)
            if (rest := last + delay - loop.time()) > 0 and not self._urgent.is_set():
                try:
                    async with asyncio.timeout(rest):
                        await self._urgent.wait()
                except TimeoutError:
                    pass
            begun = loop.time()
            await self.step()
            last = loop.time()
            delay = min(max(_DELAY, _DELAY_FACTOR * (last - begun)), _LONGEST_DELAY)

    async def step(self) -> None:
        """Take everything that is pending, commit it in one transaction, and publish it."""
        self._something.clear()
        self._urgent.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        parts = [part for log in self._logs if (part := log.take()) is not None]
        if not parts:
            return
        self.committing = {part.log for part in parts}
        # The shield includes publishing: what is committed is published, even while the writer closes.
        self._commit = asyncio.create_task(self._commit_and_publish(parts), name="event commit")
        await asyncio.shield(self._commit)

    async def _commit_and_publish(self, parts: list[_Part]) -> None:
        loop = asyncio.get_running_loop()
        for part in parts:
            part.encoded = [(type, _encode_entry(data)) for type, data in part.entries]
        retrying = False
        pause = 0.05
        while True:
            try:
                begun = loop.time()
                outcomes = await loop.run_in_executor(
                    self._thread, call_with_connection, _commit, parts, retrying
                )
                metrics.batch_committed(sum(len(part.encoded) for part in parts), loop.time() - begun)
            except (OperationalError, InterfaceError) as error:
                # The database is away or locked. The events wait here, and the executions for them.
                logger.warning("The event log cannot be written, trying again: %s", error)
                retrying = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            except (DatabaseError, ValueError, TypeError) as error:
                if len(parts) == 1:
                    logger.error("Run %s emitted what cannot be stored: %s", parts[0].log.run_id, error)
                    self._finish(parts[0], Outcome.UNSTORABLE)
                else:
                    for part in parts:  # one by one, so that only the one at fault fails
                        await self._commit_and_publish([part])
                return
            for part, outcome in zip(parts, outcomes, strict=True):
                self._finish(part, outcome)
            return

    def _finish(self, part: _Part, outcome: Outcome) -> None:
        log = part.log
        self.committing.discard(log)
        if outcome is Outcome.COMMITTED:
            log.batches += 1
            if part.encoded:
                published = [
                    (type, encoding.event(log.run_id, seq, type, data, part.at))
                    for seq, (type, data) in enumerate(part.encoded, start=part.first)
                ]
                publish(log.session_id, log.run_id, log.position, part.first, published)
            log.finish(part, None)
        elif outcome is Outcome.FENCED:
            log.finish(part, Fenced())
        else:
            log.finish(part, ValueError("The run emitted something that cannot be stored."))


def _encode_entry(data: dict[str, Any] | _Delta) -> str:
    if isinstance(data, _Delta):
        data = {"message": data.message, "text": "".join(data.pieces)}
    return encoding.encode(data)


_COUNTED = ("message_count", "llm_calls", "tool_calls", "open_input_tokens", "open_output_tokens")
_UNKNOWN_AT_FIRST = ("input_tokens", "output_tokens")


def _commit(parts: list[_Part], retrying: bool) -> list[Outcome]:
    """Write all parts in one transaction, each only if its run is running under its claim number."""
    now = timezone.now()
    outcomes: list[Outcome] = []
    rows: list[tuple[Any, ...]] = []  # of RunEvent
    grown: dict[tuple[Any, ...], list[Any]] = defaultdict(list)  # ids of runs, by what is added to them
    adapt_uuid = Run._meta.pk.get_db_prep_value
    at = connection.ops.adapt_datetimefield_value(now)
    with transaction.atomic():
        runs = {row[0]: row for row in statements.lock_runs_of_batch([part.log.run_id for part in parts])}
        for part in parts:
            log = part.log
            row = runs.get(log.run_id)
            if row is None or row[1] != RunStatus.RUNNING or row[2] != log.claim:
                outcomes.append(Outcome.FENCED)
                continue
            _, _, _, last_seq, batches = row
            outcomes.append(Outcome.COMMITTED)
            if retrying and batches == log.batches + 1:
                part.first = last_seq - len(part.encoded) + 1  # it was committed, and the reply was lost
                continue
            part.first = last_seq + 1
            part.at = now
            key = adapt_uuid(log.run_id, connection)
            entries = zip(part.encoded, part.entries, strict=True)
            rows += [
                (key, seq, type, encoded, at, message_key(type, data))
                for seq, ((type, encoded), (_, data)) in enumerate(entries, start=part.first)
            ]
            columns, values = _increments(part.counts)
            grown[columns, len(part.encoded), at, *values].append(key)
            tool_calls.project(log.run_id, part.entries, now, log.gated_tools)
            for call_id, dumped in part.kept:
                tool_calls.keep(log.run_id, call_id, dumped)
        # SQL without the ORM, which costs several times as much, since this happens for each token. And few
        # statements, since at each one the thread gives way to the event loop and may have to wait long.
        with connection.cursor() as cursor:
            insert(cursor, rows)
            for (columns, *by), keys in grown.items():
                cursor.execute(
                    "UPDATE runs_run SET last_seq = last_seq + %s, last_event_at = %s,"  # noqa: S608 - names of columns, from below
                    f" batches = batches + 1{columns} WHERE id IN ({', '.join(['%s'] * len(keys))})",
                    [*by, *keys],
                )
    return outcomes


def _increments(counts: Counter[str]) -> tuple[str, tuple[int, ...]]:
    """SET clauses that add these counts, each with a comma before it, and their parameters."""
    clauses: list[str] = []
    values: list[int] = []
    for name in _COUNTED:
        if counts[name]:
            clauses.append(f", {name} = {name} + %s")
            values.append(counts[name])
    for name in _UNKNOWN_AT_FIRST:
        if name in counts:
            clauses.append(f", {name} = COALESCE({name}, 0) + %s")
            values.append(counts[name])
    if "first_token_ms" in counts:
        clauses.append(", first_token_ms = COALESCE(first_token_ms, %s)")
        values.append(counts["first_token_ms"])
    if counts["tokens_estimated"]:
        clauses.append(", tokens_estimated = %s")
        values.append(True)
    return "".join(clauses), tuple(values)
