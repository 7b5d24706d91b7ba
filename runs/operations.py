"""The operations of the engine. The pages and every protocol call these; they differ only in encoding.

The plain functions run one short transaction each and may be called from any thread that may use the
ORM; from async code call them through ``await in_thread(function, ...)`` of ``runs.foundation.database``. The
``async`` ones wait or touch the checkpoints and belong on the server's event loop.

Every operation limits itself to what ``actor`` (a user) may see: a foreign id and an unknown id raise
the same ``NotFound``. What operators may do beyond that is in ``runs.operators``. Only
``runs.errors.EngineError`` subclasses are raised on purpose. What they return can be sent as it is (see
``runs.wire.contract``), but for querysets: ``runs.wire.representations`` represents a page of one.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from runs import (
    agents as configured,
)
from runs import operators, statements, this_process
from runs.errors import Forbidden, Invalid, NotFound, TooLarge, Unavailable
from runs.foundation.database import in_thread
from runs.foundation.limits import EVENTS_LIMIT, REASON_LIMIT, SEARCH_LIMIT, TITLE_LIMIT
from runs.foundation.values import to_json
from runs.lifecycle import admission, cancel_requests, questions, titles
from runs.live import follow, notices
from runs.live.follow import Item
from runs.models import Cancellation, Run, RunEvent, Session, Worker
from runs.reading import refusals
from runs.recovery import deletion
from runs.states import Audience, CancelSource, Multitask, OnDisconnect, Origin, SessionStatus, TitleSource
from runs.wire import contract, representations
from runs.wire.encoding import encode, timestamp

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

Data: TypeAlias = dict[str, Any]
Id: TypeAlias = UUID | str  # a string that is no UUID is an unknown id
Actor: TypeAlias = AbstractBaseUser


# Sessions


def agents() -> list[contract.Agent]:
    """The configured agents, the default one first."""
    policies = [(name, configured.policy_of(name)) for name in configured.names()]
    return [
        {
            "name": name,
            "title": policy.title or name,
            "description": policy.description,
            "default": place == 0,
        }
        for place, (name, policy) in enumerate(policies)
    ]


def create_session(
    actor: Actor, *, agent: str | None = None, title: str = "", origin: Origin = Origin.CHAT
) -> contract.Session:
    """Open a session. Raises Invalid for an agent that is not configured."""
    names = configured.names()
    if agent is None:
        agent = names[0]
    if agent not in names:
        raise _no_such_agent()
    source = TitleSource.USER if title else TitleSource.WORDS
    session = Session.objects.create(
        owner_id=actor.pk,
        agent=agent,
        title=_title(title) if title else "",
        title_source=source,
        origin=origin,
    )
    notices.session_changed(session)
    return session_snapshot(actor, session.id)


def session_snapshot(actor: Actor, session_id: Id) -> contract.Session:
    """The session as it is now. ``cancellation_pending`` and its revision come from one statement."""
    snapshot = follow.snapshot(_session(actor, session_id).id)
    if snapshot is None:
        raise NotFound
    return snapshot


def sessions(
    actor: Actor, *, search: str = "", status: str = "", origin: Origin | None = Origin.CHAT
) -> QuerySet[Session]:
    """One's own sessions, most recently changed first; ``representations.sessions`` represents a page."""
    found = representations.with_status(Session.objects.filter(owner=actor.pk)).order_by("-updated_at", "-id")
    if origin is not None:
        found = found.filter(origin=origin)
    if search:
        if "\0" in search or len(search) > SEARCH_LIMIT:
            raise Invalid(f'"search" must be a text of at most {SEARCH_LIMIT} characters without NUL.')
        said = Run.objects.filter(session=OuterRef("pk"), input__icontains=search)
        found = found.filter(Q(title__icontains=search) | Q(Exists(said)))
    if status:
        if status not in SessionStatus.values:
            raise Invalid(f'"status" must be one of {", ".join(SessionStatus.values)}.')
        found = representations.filter_status(found, status)
    return found


def rename_session(actor: Actor, session_id: Id, title: str) -> contract.Session:
    """Give a session a title of the user's."""
    found = _session(actor, session_id)
    titles.rename(found.id, _title(title), TitleSource.USER)
    return session_snapshot(actor, found.id)


async def delete_session(actor: Actor, session_id: Id, *, reason: str = "") -> None:
    """Force-cancel what is active, delete the session, its log and checkpoints. An audit entry stays."""
    found = await in_thread(_session, actor, session_id)
    await deletion.delete(found.id, actor, reason)


# Turns


class Started(dict[str, Any]):
    """The Run that a request started or, when the request was repeated, the one that exists."""

    was_there = False  # an earlier request with the same key started it


def start_turn(
    actor: Actor,
    session_id: Id,
    text: str,
    *,
    key: str | None = None,
    multitask: str = Multitask.REJECT,
    on_disconnect: str = OnDisconnect.CONTINUE,
    stream_modes: Sequence[str] = (),
) -> Started:
    """Admit a turn: one transaction that makes run and user message durable. Returns the Run.

    ``key`` is the idempotency key: the same key with the same request returns the same run, with another
    request raises IdempotencyConflict. ``stream_modes`` may name "updates" and "custom", whose chunks are
    then logged as graph.update and graph.custom. Raises Invalid, TooLarge, RunActive, AgentMismatch,
    TooManyStragglers, QueueFull, Unavailable.
    """
    found = _session(actor, session_id)
    turn = admission.Turn.checked(
        text, multitask=multitask, on_disconnect=on_disconnect, stream_modes=stream_modes, key=key
    )
    _refuse_when_leaving()
    return _started(admission.admit(found.id, actor, turn))


def start_session(
    actor: Actor,
    text: str,
    *,
    agent: str,
    seed: "Sequence[BaseMessage]" = (),
    origin: Origin = Origin.API,
    key: str | None = None,
    on_disconnect: str = OnDisconnect.CONTINUE,
) -> Started:
    """Open a session that begins with the messages of ``seed``, and start its first turn; the Run.

    One transaction: either both exist or nothing does. ``key`` belongs to the actor here: the same key with
    the same request returns the same run of the same session. Raises what ``start_turn`` raises.
    """
    if agent not in configured.names():
        raise _no_such_agent()
    turn = admission.Turn.checked(
        text, multitask=Multitask.REJECT, on_disconnect=on_disconnect, stream_modes=(), key=key
    )
    _refuse_when_leaving()
    with transaction.atomic():
        session = admission.open_session(actor, agent=agent, origin=origin, seed=seed, key=key)
        return _started(admission.admit(session.id, actor, turn))


def _started(run: Run) -> Started:
    started = Started(representations.run(run))
    started.was_there = run.was_there
    return started


def answer(actor: Actor, run_id: Id, answers: Mapping[str, Any]) -> contract.Run:
    """Answer all questions of a waiting run, ``{question id: value}``. Raises NotWaiting, Invalid."""
    run = _run(actor, run_id)
    if not isinstance(answers, Mapping) or not all(isinstance(name, str) for name in answers):
        raise Invalid('"answers" must be an object that gives each question id its value.')
    values = to_json(dict(answers))
    if values != dict(answers):
        raise Invalid('"answers" holds what cannot be stored: a NUL character, a huge number, deep nesting.')
    if len(encode(values)) > settings.RUNS_MESSAGE_LIMIT:
        raise TooLarge
    return representations.run(questions.answer(run.id, values, actor))


def refusal(run: Run) -> refusals.Refusal | None:
    """The refused answer for which a waiting run asks again; None if it asks for the first time."""
    return refusals.of_run(run)


def resume(actor: Actor, run_id: Id) -> contract.Run:
    """Go on from the checkpoint of an interrupted run in a new run; the new Run."""
    run = _run(actor, run_id)
    _refuse_when_leaving()
    return representations.run(admission.resume(run, actor))


def retry(actor: Actor, run_id: Id, text: str | None = None) -> contract.Run:
    """Run the session's latest turn again, optionally with other words; the new Run."""
    run = _run(actor, run_id)
    _refuse_when_leaving()
    return representations.run(admission.retry(run, actor, text))


def dismiss(actor: Actor, run_id: Id) -> contract.Run:
    """Close an interrupted run: its history will be repaired, and the session is idle."""
    return representations.run(admission.dismiss(_run(actor, run_id)))


def get_run(actor: Actor, run_id: Id) -> contract.Run:
    """The run as it is now."""
    return representations.run(_run(actor, run_id))


def runs_of(actor: Actor, session_id: Id) -> QuerySet[Run]:
    """The session's runs, newest first; for paging. ``representations.runs`` represents a page."""
    return Run.objects.filter(session=_session(actor, session_id)).order_by("-created_at", "-id")


# Cancel


def cancel_run(
    actor: Actor, run_id: Id, *, reason: str = "", source: str = CancelSource.USER
) -> contract.Cancellation:
    """Request that this run be cancelled; returns the Cancellation at once, settled or not.

    Acceptance is durable: from then on the run can become nothing but cancelled. It does not undo what
    tools have done, and it does not wait. Of a finished run: ``id`` None and outcome ``already_finished``.
    """
    run = _run(actor, run_id)
    request: Data = {"source": source, "reason": _reason(reason), "requested_by": actor}
    return _represent(cancel_requests.request_cancel(run.id, **request), run.session_id, run.id, request)


def cancel_session(
    actor: Actor, session_id: Id, *, reason: str = "", source: str = CancelSource.USER
) -> contract.Cancellation:
    """Cancel the active run and every queued run alike; the Cancellation of the first in line."""
    found = _session(actor, session_id)
    request: Data = {"source": source, "reason": _reason(reason), "requested_by": actor}
    return _represent(cancel_requests.request_session_cancel(found.id, **request), found.id, None, request)


async def wait_for_cancellation(
    cancellation: contract.Cancellation, seconds: float | None
) -> contract.Cancellation:
    """The Cancellation again, once it has settled or ``seconds`` have passed (None: until it settles)."""
    return await follow.settled(cancellation, seconds)


def force_cancel(actor: Actor, run_id: Id, reason: str) -> contract.Cancellation:
    """End a run durably without its worker, and fence what still works for it. Needs the permission."""
    done = operators.force_cancel(actor, run_id, reason)
    request: Data = {"source": CancelSource.OPERATOR, "reason": reason, "requested_by": actor}
    return _represent(done.operation, done.run.session_id, done.run.id, request)


async def reconcile(actor: Actor, run_id: Id, reason: str) -> contract.Reconciliation:
    """Bring a run into order, and tell what was done. Needs the permission.

    It ends the run of a dead worker, settles an overdue cancel, dismisses an interrupted run, offers what
    is queued or answered to a worker again, and leaves the run of a living worker alone.
    """
    return await in_thread(lambda: operators.representation(operators.reconcile(actor, run_id, reason)))


def _represent(
    operation: Cancellation | None, session_id: UUID, run_id: UUID | None, request: Data
) -> contract.Cancellation:
    if operation is None:
        return representations.nothing_to_cancel(session_id, run_id, **request)
    return representations.cancellation(operation)


# Reading


async def history(
    actor: Actor,
    session_id: Id,
    *,
    limit: int | None = None,
    before: str | None = None,
    audience: Audience | None = Audience.ANSWER,
) -> contract.History:
    """The messages of a session, and its latest run: follow on from that run's ``last_seq``.

    ``audience`` None: also what models said on the way.
    """
    found = await in_thread(_session, actor, session_id)
    from runs.reading import history as histories  # LangChain, which commands need not load

    return await histories.read(found, limit=limit, before=before, audience=audience)


def events(actor: Actor, run_id: Id, *, after: int = 0, limit: int = 500) -> contract.EventPage:
    """A page of a run's log. Raises CursorGone."""
    run = _run(actor, run_id)
    found = RunEvent.objects.filter(run=run, seq__gt=after).order_by("seq")
    rows = list(
        found.values_list("seq", "type", "data", "at", "run__compacted_to")[: min(limit, EVENTS_LIMIT)]
    )
    if rows:
        follow.raise_if_compacted(rows[0][4], after)
    page: list[contract.Event] = [
        {"run": str(run.id), "seq": seq, "type": type, "data": data, "at": timestamp(at)}
        for seq, type, data, at, _ in rows
    ]
    last_seq = page[-1]["seq"] if page else min(after, run.last_seq)
    return {"events": page, "last_seq": last_seq, "done": run.is_terminal and last_seq >= run.last_seq}


async def follow_session(
    actor: Actor, session_id: Id, cursor: tuple[Id, int] | None = None
) -> AsyncGenerator[Item, None]:
    """Everything that happens in a session, in order, each event once; see ``runs.live.follow``.

    The first item is SessionChanged. Without a cursor events follow from its ``active_run.last_seq``; with
    ``(run, seq)`` from right behind that. Close the iterator (``aclose``) to leave. It ends after
    SessionDeleted. Raises NotFound and CursorGone before the first item.
    """
    found = await in_thread(_session, actor, session_id)
    at = (_uuid(cursor[0]), cursor[1]) if cursor else None
    async with aclosing(follow.session(found.id, at)) as items:
        async for item in items:
            yield item


async def follow_run(actor: Actor, run_id: Id, after: int = 0) -> AsyncGenerator[Item, None]:
    """The Event items of one run behind ``after``; ends after the terminal event."""
    run = await in_thread(_run, actor, run_id)
    async with aclosing(follow.run(run.session_id, run.id, after)) as items:
        async for item in items:
            yield item


async def follow_user(actor: Actor) -> AsyncGenerator[Item, None]:
    """SummaryChanged and SessionDeleted for all of one's own sessions, live."""
    async with aclosing(follow.user(actor.pk)) as items:
        async for item in items:
            yield item


# The processes


def workers(actor: Actor) -> QuerySet[Worker]:
    """All workers, longest running first; for paging. Needs the permission; raises Forbidden."""
    if not actor.has_perm("runs.view_worker"):  # type: ignore[attr-defined]
        raise Forbidden
    return Worker.objects.order_by("started_at", "id")


# Who may


def _uuid(value: Id) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(str(value))
    except ValueError:
        raise NotFound from None


def _session(actor: Actor, session_id: Id) -> Session:
    found = statements.own_session.first(_uuid(session_id), actor.pk)
    if found is None:
        raise NotFound
    return found


def _run(actor: Actor, run_id: Id) -> Run:
    found = Run.objects.filter(id=_uuid(run_id), session__owner=actor.pk).first()
    if found is None:
        raise NotFound
    return found


def _no_such_agent() -> Invalid:
    return Invalid(f"There is no agent of that name. Configured: {', '.join(configured.names())}.")


def _refuse_when_leaving() -> None:
    if this_process.engine is not None and this_process.engine.leaving:
        raise Unavailable


def _title(title: Any) -> str:
    title = " ".join(admission.checked_text(title, "title").split())
    if len(title) > TITLE_LIMIT:
        raise Invalid(f'"title" is longer than {TITLE_LIMIT} characters.')
    return title


def _reason(reason: Any) -> str:
    if not reason:
        return ""
    return admission.checked_text(reason, "reason")[:REASON_LIMIT]
