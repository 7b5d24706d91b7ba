"""Audit entries: what operators did, and what cannot be undone."""

from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest

from runs.admin.base import ConsoleAdmin, is_uuid
from runs.admin.formatting import NOTHING, clock
from runs.admin.lists import filter_kinds, filters, search
from runs.models import AuditEntry
from runs.wire.encoding import pretty


@admin.register(AuditEntry)
class AuditEntryAdmin(ConsoleAdmin):
    """All audit entries."""

    list_display = ("when", "actor", "what", "target", "reason")
    list_filter = (filter_kinds.since("at"), filter_kinds.until("at"), filters.Action, filters.Actor)
    ordering = ("-at", "-id")
    search_help_text = "Id of a run or a session or the beginning of one, or the name of an account"
    page_template = "admin/pages/auditentry.html"

    def search(self, request: HttpRequest, term: str) -> Q:
        return Q(target=term) | (search.beginning("target", text=term, of=str) or Q())

    @admin.display(description="time", ordering="at")
    def when(self, entry: AuditEntry) -> str:
        return clock(entry.at)

    @admin.display(description="action", ordering="action")
    def what(self, entry: AuditEntry) -> str:
        return entry.action.replace("_", " ")

    def page_context(self, request: HttpRequest, found: AuditEntry) -> dict[str, Any]:
        return {
            "title": f"Audit entry {found.pk}",
            "facts": [
                ("Time", clock(found.at)),
                ("Actor", found.actor),
                ("Action", self.what(found)),
                ("Target", found.target),
                ("Reason", found.reason or NOTHING),
            ],
            "details": pretty(found.details),
            "target_model": _model_of(found),
        }


def _model_of(entry: AuditEntry) -> str | None:
    """The model of the entry's target, if it may have a page."""
    if not is_uuid(entry.target) or entry.action == "delete_session":
        return None
    return "session" if entry.action == "read_chat" else "run"
