"""Runs: the list, with those that need attention first, the page of a run, and the commands."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import F, Q, QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from runs import operators
from runs.admin.actions.confirmation import actions_for, report_of
from runs.admin.base import ConsoleAdmin, actor_of, ago_column, id_column, is_uuid
from runs.admin.formatting import NOTHING, badge, link, number, session_name, short, tokens
from runs.admin.lists import attention, filter_kinds, filters, search
from runs.admin.lists.paging import AttentionFirstPaginator, BoundedPaginator
from runs.admin.pages import run_page
from runs.models import Run

# Fields that may be long, and that the list does not show.
_LEFT_OUT = (
    "input", "questions", "answers", "error_message", "error_details", "stream_modes", "request_digest",
)  # fmt: skip


@admin.register(Run)
class RunAdmin(ConsoleAdmin):
    """The runs of all users."""

    list_display = (
        "identifier", "state", "age", "last_event", "spent", "owner", "session_link", "worker_link", "agent",
    )  # fmt: skip
    list_filter = (
        filters.Attention,
        filters.Status,
        filters.Owner,
        filters.OfSession,
        filters.OfWorker,
        filters.Age,
        filter_kinds.until("created_at"),
        filters.LastEvent,
        filters.Agent,
        filters.Decision,
        filters.Tokens,
    )
    list_select_related = ("session__owner", "worker")
    ordering = ("-created_at", "-id")
    search_help_text = "Id of a run or a session or the beginning of one, owner, title"
    page_template = "admin/pages/run.html"

    class Media:
        js = [Script("admin/pages/run.js", type="module")]

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).defer(*_LEFT_OUT).annotate(tokens=filters.TOKENS)

    def prepare(self, request: HttpRequest, rows: Any) -> None:
        signs = attention.signs(rows, timezone.now())
        for run in rows:
            run.signs = signs[run.id]
            run.reader = actor_of(request)
            run.reads = operators.may_read(run.reader, run.session.owner_id)

    def get_paginator(  # type: ignore[override]  # the stub knows no keyword
        self, request: HttpRequest, queryset: QuerySet[Run], per_page: int, **options: Any
    ) -> Paginator:
        is_in_order = queryset.model is Run and "o" not in request.GET
        paginator = AttentionFirstPaginator if is_in_order else BoundedPaginator
        return paginator(queryset, per_page)

    def search(self, request: HttpRequest, term: str) -> Q:
        by_id = search.beginning("id", "session", text=term)
        return by_id or Q(session__in=search.sessions_found(request, actor_of(request), term))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return dict(actions_for(request))

    identifier = id_column("run")
    age = ago_column("age", "created_at")
    last_event = ago_column("last event", "last_event_at")

    @admin.display(description="status", ordering="status")
    def state(self, run: Run) -> SafeString:
        marks = [(badge(sign),) for sign in run.signs]  # type: ignore[attr-defined]
        return format_html("{}{}", badge(run.status), format_html_join("", " {}", marks))

    @admin.display(description="session")
    def session_link(self, run: Run) -> SafeString:
        name = session_name(run.session, readable=run.reads)  # type: ignore[attr-defined]
        return link(run.reader, "session", run.session_id, name)  # type: ignore[attr-defined]

    @admin.display(ordering="session__owner__username")
    def owner(self, run: Run) -> str:
        return run.session.owner.get_username()

    @admin.display(description="worker", ordering="worker")
    def worker_link(self, run: Run) -> str | SafeString:
        if run.worker is None:
            return NOTHING
        return link(run.reader, "worker", run.worker_id, str(run.worker))  # type: ignore[attr-defined]

    @admin.display(description="tokens", ordering=F("tokens"))
    def spent(self, run: Run) -> str:
        return number(tokens(run))

    # Pages

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("report/", view(self.report_view), name="runs_run_report"),
            path("<uuid:run_id>/live/", view(self.live_view), name="runs_run_live"),
            path("<uuid:run_id>/checkpoint/", view(self.checkpoint_view), name="runs_run_checkpoint"),
        ]
        return own + super().get_urls()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Run | None:
        everything = Run.objects.select_related("session__owner", "worker")
        return everything.filter(id=object_id).first() if is_uuid(object_id) else None

    def page_context(self, request: HttpRequest, found: Run) -> dict[str, Any]:
        _note_reading(request, found)
        return {
            "title": f"Run {short(found.id)}",
            **run_page.live(request, found),
            **run_page.checkpoint(request, found),
        }

    def live_view(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """The part of the page that changes while the run is active. Its script asks for it."""
        run = self.viewed(request, str(run_id))
        _note_reading(request, run)
        return render(request, "admin/pages/run_live.html", run_page.live(request, run))

    def checkpoint_view(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """The checkpoint, for the same script."""
        run = self.viewed(request, str(run_id))
        _note_reading(request, run)
        return render(request, "admin/pages/run_checkpoint.html", run_page.checkpoint(request, run))

    def report_view(self, request: HttpRequest) -> HttpResponse:
        """The report of the last command to several runs."""
        self.check_view(request)
        report = report_of(request)
        if report is None:
            return redirect("admin:runs_run_changelist")
        title = f"{report['command'].label}: report"
        return self.render(request, "admin/actions/report.html", title=title, **report)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Why a run is not deleted by itself, and what can be deleted instead."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self.get_object(request, object_id)
        if found is None:
            raise Http404
        title = "A run is not deleted by itself"
        answer = self.render(request, "admin/pages/run_delete.html", found, title=title)
        answer.status_code = 200 if request.method in ("GET", "HEAD") else 403
        return answer


def _note_reading(request: HttpRequest, run: Run) -> None:
    if operators.may_read(actor_of(request), run.session.owner_id):
        operators.note_reading(actor_of(request), run.session)
