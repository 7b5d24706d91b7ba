"""Sessions: their owner, their statistics, and their history for those who may read it."""

from collections.abc import Sequence
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib import admin
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from runs import operators
from runs.admin.actions.deletion import DeletesThroughEngine
from runs.admin.base import ConsoleAdmin, actor_of, ago_column, allowed, id_column
from runs.admin.formatting import (
    NOTHING,
    badge,
    clock,
    count,
    counts,
    cut,
    number,
    session_name,
    short,
    span,
    tokens,
)
from runs.admin.lists import filter_kinds, filters, search
from runs.errors import EngineError
from runs.foundation.exceptions import described
from runs.models import Cancellation, Run, Session
from runs.states import ACTIVE, Origin
from runs.wire import contract, representations, statistics
from runs.wire.encoding import pretty

_RUNS = 25
_MESSAGES = 50


@admin.register(Session)
class SessionAdmin(DeletesThroughEngine, ConsoleAdmin):
    """The sessions of all users."""

    list_display = (
        "identifier",
        "called",
        "owner_name",
        "agent",
        "status",
        "from_where",
        "changed",
        "opened",
    )
    list_filter = (
        filters.SessionState,
        filters.SessionOwner,
        filter_kinds.since("updated_at"),
        filter_kinds.until("updated_at"),
        filters.Agent,
    )
    list_select_related = ("owner",)
    ordering = ("-updated_at", "-id")
    search_help_text = "Id of a session or the beginning of one, owner, title"
    page_template = "admin/pages/session.html"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return allowed(request, "delete_session")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        return representations.with_status(super().get_queryset(request))

    def prepare(self, request: HttpRequest, rows: Any) -> None:
        for session in rows:
            session.reads = operators.may_read(actor_of(request), session.owner_id)

    def search(self, request: HttpRequest, term: str) -> Q:
        by_id = search.beginning("id", text=term)
        return by_id or Q(id__in=search.sessions_found(request, actor_of(request), term))

    identifier = id_column("session")
    changed = ago_column("changed", "updated_at")
    opened = ago_column("opened", "created_at")

    @admin.display(description="title", ordering="title")
    def called(self, session: Session) -> str:
        return (session.title if session.reads else "") or NOTHING  # type: ignore[attr-defined]

    @admin.display(description="owner", ordering="owner__username")
    def owner_name(self, session: Session) -> str:
        return session.owner.get_username()

    @admin.display(description="status")
    def status(self, session: Session) -> SafeString:
        return badge(representations.session_status(session))

    @admin.display(description="origin", ordering="origin")
    def from_where(self, session: Session) -> str:
        return "API" if session.origin == Origin.API else "chat"

    # Its page

    def page_context(self, request: HttpRequest, found: Session) -> dict[str, Any]:
        reads = operators.may_read(actor_of(request), found.owner_id)
        runs = Run.objects.filter(session=found).defer("input", "questions", "answers")
        numbers = statistics.of_sessions([found.id])[found.id]
        context: dict[str, Any] = {
            "title": f"Session {short(found.id)}",
            "name": session_name(found, readable=reads),
            "session": found,
            "state": badge(representations.session_status(found)),
            "reads": reads,
            "pending": Cancellation.objects.filter(session=found, settled_at=None).first(),
            "numbers": _numbers(numbers),
            "runs": [_line(run) for run in runs.order_by("-created_at", "-id")[:_RUNS]],
            "runs_cut": numbers["runs"] > _RUNS,
            "may_delete": self.has_delete_permission(request, found),
            "opened": clock(found.created_at),
            "changed": clock(found.updated_at),
        }
        if reads:
            operators.note_reading(actor_of(request), found)
            context |= _history(request, found)
        return context

    # Deleting

    async def delete_one(self, actor: AbstractBaseUser, key: Any, reason: str) -> None:
        await operators.delete_session(actor, key, reason)

    def what_goes(self, chosen: Sequence[Session]) -> list[tuple[Any, str, str]]:
        rows = (
            Run.objects.filter(session__in=[session.id for session in chosen])
            .values("session")
            .annotate(runs=Count("id"), active=Count("id", filter=Q(status__in=ACTIVE)))
        )
        counted = {row["session"]: row for row in rows}
        rows_of_page = []
        for session in chosen:
            row = counted.get(session.id, {"runs": 0, "active": 0})
            runs, active = count(row["runs"], "run"), count(row["active"], "active run")
            words = f"of {session.owner.get_username()}, {runs} with logs and checkpoints."
            if row["active"]:
                words += f" Cancelled first: {active}."
            rows_of_page.append((session, str(session.id), words))
        return rows_of_page


def _line(run: Run) -> dict[str, Any]:
    return {
        "run": run,
        "name": short(run.id),
        "state": badge(run.status),
        "resolution": run.resolution or NOTHING,
        "admitted": clock(run.created_at),
        "took": span(run.duration_ms / 1000),
        "tokens": number(tokens(run)),
    }


def _numbers(numbers: contract.SessionStatistics) -> list[tuple[str, str]]:
    return [
        ("Runs", number(numbers["runs"])),
        *counts(numbers),
        ("Executed for", span(numbers["duration_ms"] / 1000)),
    ]


def _history(request: HttpRequest, session: Session) -> dict[str, Any]:
    """The end of the history, or the part before ``?before=<message>``."""
    before = request.GET.get("before") or None
    try:
        read = async_to_sync(operators.history)(
            actor_of(request), session, limit=_MESSAGES + 1, before=before
        )
    except EngineError as error:
        return {"unreadable": error.message}
    except Exception as error:  # noqa: BLE001 - a graph's own reducers may raise anything
        return {"unreadable": described(error)}
    messages = read["messages"]
    shown = messages[-_MESSAGES:]
    return {
        "history": [
            (message, [(call, cut(pretty(call["args"]))) for call in message["tool_calls"]])
            for message in shown
        ],
        "earlier": shown[0]["id"] if len(messages) > _MESSAGES else None,
        "is_end": before is None,
    }
