"""The user's list of sessions on the page: most recent first, with search and a cursor."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime

from runs import operations
from runs.foundation.limits import SEARCH_LIMIT
from runs.models import Session
from runs.operations import Actor
from runs.wire import representations

PAGE = 40


def read(user: Actor, query: Mapping[str, str]) -> dict[str, Any]:
    """``{sessions, search, older}``; ``query`` is the page's own: ``q`` searches, ``older`` pages."""
    search = query.get("q", "").replace("\x00", "").strip()[:SEARCH_LIMIT]
    rows = _behind(operations.sessions(user, search=search), query.get("older", ""))
    page = list(rows[: PAGE + 1])
    more = len(page) > PAGE
    page = page[:PAGE]
    return {
        "sessions": representations.sessions(page),
        "search": search,
        "older": f"{page[-1].updated_at.isoformat()},{page[-1].id}" if more else "",
    }


def _behind(rows: QuerySet[Session], cursor: str) -> QuerySet[Session]:
    """What comes after the cursor; a cursor that is none is ignored."""
    place = _parse(cursor)
    if place is None:
        return rows
    at, session_id = place
    return rows.filter(Q(updated_at__lt=at) | Q(updated_at=at, id__lt=session_id))


def _parse(cursor: str) -> tuple[datetime, uuid.UUID] | None:
    moment, _, session_id = cursor.partition(",")
    try:
        at = parse_datetime(moment)
        if at is None or at.tzinfo is None:
            return None
        return at.astimezone(UTC), uuid.UUID(session_id)
    except (ValueError, OverflowError):  # the latter when UTC has no such time
        return None
