"""Lists come in pages ``{results, next, previous}``; the links carry a cursor, so nobody counts rows."""

from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request


class Pages(CursorPagination):
    """Cursor pages of 50, or of ``?limit=``; ``inputs.Page`` says what may be asked for."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        try:
            return list(super().paginate_queryset(queryset, request, view) or [])
        except (NotFound, ModelValidationError, ValueError):  # not base64, or no time inside
            raise ValidationError({"cursor": "This is no cursor of ours."}) from None


class SessionPages(Pages):
    ordering = ("-updated_at", "id")


class RunPages(Pages):
    ordering = ("-created_at", "id")


class WorkerPages(Pages):
    ordering = ("started_at", "id")
