"""Admission: checks who may start a turn, and puts the run into the queue, durably."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4, uuid5

from django.conf import settings

from runs import agents, statements
from runs.errors import IdempotencyConflict, Invalid, QueueFull, RunActive, TooLarge
from runs.foundation.limits import IDEMPOTENCY_KEY_LIMIT
from runs.lifecycle import cancel_requests, locks, queue, resolution, stragglers, titles
from runs.live import notices
from runs.models import Run, Seed, Session
from runs.states import (
    ACTIVE,
    CancelSource,
    Multitask,
    OnDisconnect,
    Origin,
    Resolution,
    RunStatus,
    TitleSource,
)

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

STREAM_MODES = ("updates", "custom")

# The namespace in which the idempotency key of a session's first turn gives the session its id.
_SESSIONS_BY_KEY = UUID("0a4c4a5e-6f0a-4f6e-8f0d-6f5d3c1f7b2e")


@dataclass(frozen=True, slots=True)
class Turn:
    """A request for a turn. It is checked before anything is locked."""

    text: str
    multitask: Multitask = Multitask.REJECT
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    stream_modes: tuple[str, ...] = ()
    key: str | None = None

    @classmethod
    def checked(
        cls, text: Any, *, multitask: Any, on_disconnect: Any, stream_modes: Sequence[Any], key: Any
    ) -> "Turn":
        """Raises Invalid or TooLarge with a sentence that names the field."""
        text = checked_text(text, "input")
        if multitask not in Multitask.values:
            raise Invalid(f'"multitask" must be one of {", ".join(Multitask.values)}.')
        if on_disconnect not in OnDisconnect.values:
            raise Invalid(f'"on_disconnect" must be one of {", ".join(OnDisconnect.values)}.')
        if isinstance(stream_modes, str) or any(mode not in STREAM_MODES for mode in stream_modes):
            raise Invalid(f'"stream_modes" must be a list of {", ".join(STREAM_MODES)}.')
        is_key = isinstance(key, str) and 0 < len(key) <= IDEMPOTENCY_KEY_LIMIT and "\0" not in key
        if key is not None and not is_key:
            raise Invalid(f"The idempotency key must be a text of 1 to {IDEMPOTENCY_KEY_LIMIT} characters.")
        modes = tuple(mode for mode in STREAM_MODES if mode in stream_modes)
        return cls(text, Multitask(multitask), OnDisconnect(on_disconnect), modes, key)

    @property
    def digest(self) -> str:
        """Tells whether a repeated key comes with the same request."""
        request = [self.text, self.multitask, self.on_disconnect, self.stream_modes]
        return hashlib.sha256(json.dumps(request).encode()).hexdigest()


def checked_text(text: Any, name: str) -> str:
    """A user's text that can be stored and sent. Raises Invalid or TooLarge."""
    if not isinstance(text, str):
        raise Invalid(f'"{name}" must be a text.')
    if not text.strip():
        raise Invalid(f'"{name}" is empty. Write something.')
    if len(text) > settings.RUNS_MESSAGE_LIMIT:
        raise TooLarge(f'"{name}" is longer than {settings.RUNS_MESSAGE_LIMIT:,} characters.')
    if "\0" in text:
        raise Invalid(f'"{name}" contains a NUL character, which cannot be stored.')
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid(f'"{name}" contains half of a surrogate pair, which is no character.')
    return text


def open_session(
    actor: Any, *, agent: str, origin: Origin, seed: "Sequence[BaseMessage]", key: str | None
) -> Session:
    """A new session with its seed. With a ``key``, the session that the same key has opened, if there is one.

    To be called in the transaction that starts its first turn. Raises IdempotencyConflict if the session was
    opened with something else.
    """
    from runs.memory import brought_messages

    session_id = uuid4() if key is None else uuid5(_SESSIONS_BY_KEY, f"{actor.pk} {key}")
    messages = brought_messages.serialise(session_id, seed)
    session, is_new = Session.objects.get_or_create(
        id=session_id, defaults={"owner": actor, "agent": agent, "origin": origin}
    )
    if is_new:
        if messages:
            Seed.objects.create(session=session, messages=messages)
        notices.session_changed(session)
        return session
    brought = list(Seed.objects.filter(session=session).values_list("messages", flat=True))
    if session.agent != agent or brought != ([messages] if messages else []):
        raise IdempotencyConflict
    return session


def admit(session_id: UUID, actor: Any, turn: Turn) -> Run:
    """One transaction: the idempotency key, the strategy, then the run with its user message.

    Raises IdempotencyConflict, AgentMismatch, TooManyStragglers, RunActive, QueueFull.
    """
    with locks.locked_session(session_id) as session:
        if turn.key is not None:
            earlier = statements.run_with_key.first(session.id, turn.key)
            if earlier is not None:
                if earlier.request_digest != turn.digest:
                    raise IdempotencyConflict
                earlier.was_there = True
                return earlier
        agents.policy_of(session.agent)
        stragglers.refuse_too_many(actor)
        concerned = statements.open_runs(session.id)
        active = [run for run in concerned if run.status in ACTIVE]
        if active and turn.multitask is Multitask.REJECT:
            raise RunActive
        if turn.multitask is Multitask.INTERRUPT:
            _cancel_all(session, active, actor)
        elif sum(run.status == RunStatus.QUEUED for run in active) >= settings.RUNS_QUEUE_LIMIT:
            raise QueueFull
        for interrupted in concerned:
            if interrupted.status == RunStatus.INTERRUPTED:
                resolution.resolve(session, interrupted.id, Resolution.DISMISSED)
        if not session.title:
            session.title, session.title_source = titles.from_words(turn.text), TitleSource.WORDS
        return queue.enqueue(
            session,
            Run(
                input=turn.text,
                message_id=str(uuid4()),
                requested_by=actor,
                on_disconnect=turn.on_disconnect,
                stream_modes=list(turn.stream_modes),
                idempotency_key=turn.key,
                request_digest=turn.digest,
            ),
        )


def resume(run: Run, actor: Any, *, automatic: bool = False) -> Run:
    """Admit a run that goes on from the checkpoint of this interrupted run. It is first in the queue.

    ``automatic``: nobody asks for it now, so what its user's stopped runs have left at work does not count.
    """
    if not automatic:
        stragglers.refuse_too_many(actor)
    return _follow_up(
        run,
        actor,
        Resolution.RESUMED,
        lambda ended: Run(
            resumes=ended,
            input=ended.input,
            message_id=ended.message_id,
            automatic_resumes=ended.automatic_resumes + 1 if automatic else 0,
        ),
    )


def retry(run: Run, actor: Any, text: str | None) -> Run:
    """Admit a run in place of the session's latest run. The history goes back to before its user message."""
    if text is not None:
        text = checked_text(text, "input")
    stragglers.refuse_too_many(actor)
    return _follow_up(
        run,
        actor,
        Resolution.RETRIED,
        lambda ended: Run(
            retries=ended, input=ended.input if text is None else text, message_id=str(uuid4())
        ),
    )


def _follow_up(run: Run, actor: Any, how: Resolution, make: Callable[[Run], Run]) -> Run:
    """Decide about an ended run, and put the run that is made from it first in the queue."""
    with locks.locked_session(run.session_id) as session:
        agents.policy_of(session.agent)
        ended = resolution.resolve(session, run.id, how)
        new = make(ended)
        new.requested_by, new.stream_modes = actor, ended.stream_modes
        return queue.enqueue(session, new, head=True)


def dismiss(run: Run) -> Run:
    """Decide that nobody goes on from this interrupted run. The queue behind it moves again."""
    with locks.locked_session(run.session_id) as session:
        return resolution.resolve(session, run.id, Resolution.DISMISSED)


def _cancel_all(session: Session, active: Sequence[Run], actor: Any) -> None:
    for run in sorted(active, key=lambda run: run.queue_place):
        cancel_requests.request_cancel(
            run.id,
            source=CancelSource.SUPERSEDED,
            reason="A newer message took its place.",
            requested_by=actor,
        )
    session.refresh_from_db()
