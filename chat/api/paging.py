"""Lists come in pages. Their links carry a cursor, so that no rows are counted."""

from datetime import UTC
from typing import Annotated, Any, TypeAlias

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from typing_extensions import TypedDict  # Pydantic needs this one before Python 3.12

from chat.api.inputs import PAGE_LIMIT
from runs.wire.contract import Keywords

Link: TypeAlias = Annotated[str, Keywords(format="uri")]


class Page(TypedDict):
    """A page of a list. The links lead to the pages around it."""

    results: list[Any]
    next: Link | None
    previous: Link | None


class Pages(CursorPagination):
    """Pages of 50 entries, or of ``?limit=``. ``inputs.Page`` checks the limit."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = PAGE_LIMIT

    def decode_cursor(self, request: Request) -> Any:
        """The cursor with its time in UTC, as in the rows. Raises OverflowError when UTC has no such time."""
        cursor: Any = super().decode_cursor(request)
        if cursor is None or cursor.position is None:
            return cursor
        at = parse_datetime(cursor.position)
        if at is None or at.tzinfo is None:
            raise ValueError("no time, or one of no time zone")
        return cursor._replace(position=str(at.astimezone(UTC)))

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        try:
            return list(super().paginate_queryset(queryset, request, view) or [])
        except (NotFound, ValueError, OverflowError):  # not base64, or no time inside
            raise ValidationError({"cursor": "This is no cursor of ours."}) from None


class SessionPages(Pages):
    ordering = ("-updated_at", "id")


class RunPages(Pages):
    ordering = ("-created_at", "id")


class WorkerPages(Pages):
    ordering = ("started_at", "id")
