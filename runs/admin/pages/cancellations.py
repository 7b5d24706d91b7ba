"""Cancellations: who asked for them and why, how long they took, and their outcome."""

from typing import Any

from django.contrib import admin
from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from runs.admin.base import ConsoleAdmin, actor_of, ago_column, id_column
from runs.admin.formatting import NOTHING, badge, between, clock, link, short
from runs.admin.lists import filter_kinds, filters, search
from runs.models import Cancellation


@admin.register(Cancellation)
class CancellationAdmin(ConsoleAdmin):
    """Cancel operations of all sessions."""

    list_display = (
        "identifier", "run_link", "status", "source", "who", "reason", "accepted", "latency", "given_up",
    )  # fmt: skip
    list_filter = (
        filter_kinds.since("accepted_at"),
        filter_kinds.until("accepted_at"),
        filters.Outcome,
        filters.Source,
        filters.Escalated,
    )
    list_select_related = ("requested_by",)
    ordering = ("-accepted_at", "-id")
    search_help_text = "Id of a run or a session or the beginning of one, or who asked"
    page_template = "admin/pages/cancellation.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cancellation]:
        took = ExpressionWrapper(F("settled_at") - F("accepted_at"), output_field=DurationField())
        return super().get_queryset(request).annotate(took=took)

    def prepare(self, request: HttpRequest, rows: Any) -> None:
        for one in rows:
            one.reader = actor_of(request)

    def search(self, request: HttpRequest, term: str) -> Q:
        return search.beginning("run", "session", "id", text=term) or Q(requested_by__username=term)

    identifier = id_column("cancellation")
    accepted = ago_column("accepted", "accepted_at")

    @admin.display(description="run")
    def run_link(self, one: Cancellation) -> SafeString:
        return link(one.reader, "run", one.run_id, short(one.run_id))  # type: ignore[attr-defined]

    @admin.display(description="outcome", ordering="outcome")
    def status(self, one: Cancellation) -> SafeString:
        return badge(one.outcome or "pending")

    @admin.display(description="asked by", ordering="requested_by__username")
    def who(self, one: Cancellation) -> str:
        return one.requested_by.get_username() if one.requested_by else NOTHING

    @admin.display(description="settled after", ordering="took")
    def latency(self, one: Cancellation) -> str:
        if one.settled_at is None:
            return f"{between(one.accepted_at, timezone.now())} so far"
        return between(one.accepted_at, one.settled_at)

    @admin.display(description="given up", ordering="escalated")
    def given_up(self, one: Cancellation) -> str | SafeString:
        return badge("given up", "bad") if one.escalated else NOTHING

    def page_context(self, request: HttpRequest, found: Cancellation) -> dict[str, Any]:
        reader = actor_of(request)
        return {
            "title": f"Cancellation {short(found.id)}",
            "state": badge(found.outcome or "pending"),
            "facts": [
                ("Run", link(reader, "run", found.run_id, found.run_id)),
                ("Session", link(reader, "session", found.session_id, found.session_id)),
                ("Source", found.source),
                ("Asked by", self.who(found)),
                ("Reason", found.reason or NOTHING),
                ("Accepted", clock(found.accepted_at)),
                ("Settled", clock(found.settled_at)),
                ("Settled after", self.latency(found)),
                ("Given up", "something was given up on" if found.escalated else "nothing"),
            ],
        }
