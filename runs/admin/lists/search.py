"""Search by the beginning of an id, and for sessions by their owner's name or words of their title."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from runs import operators
from runs.admin.lists import paging
from runs.models import Session

# So many accounts are found by a part of their name, and so many sessions, the latest ones.
OWNERS = 20
SESSIONS = 2_000


def sessions_found(request: HttpRequest, actor: AbstractBaseUser, words: str) -> list[UUID]:
    """Ids of sessions with this owner, and of those with these words in a title that the actor may read."""
    sessions = Session.objects.order_by("-updated_at", "-id")
    titled = paging.among_first(request, sessions).filter(operators.readable(actor, "owner"))
    return [
        *_ids(request, sessions.filter(owner__in=_accounts_named(request, words))),
        *_ids(request, titled.filter(title__icontains=words)),
    ]


def _accounts_named(request: HttpRequest, words: str) -> list[int]:
    """Keys of the accounts with this in their name. The one with exactly this name comes first."""
    users = get_user_model()._default_manager
    name = get_user_model().USERNAME_FIELD
    exactly = list(users.filter(**{name: words}).values_list("pk", flat=True))
    part = users.filter(**{f"{name}__icontains": words}).values_list("pk", flat=True)
    found = [*exactly, *part[: OWNERS + 1]]
    if len(found) > OWNERS:
        paging.leave_out(request, paging.NO_INDEX)
    return found[:OWNERS]


def _ids(request: HttpRequest, sessions: QuerySet[Session]) -> list[UUID]:
    found = list(sessions.values_list("id", flat=True)[: SESSIONS + 1])
    if len(found) > SESSIONS:
        paging.leave_out(request, paging.NO_INDEX)
    return found[:SESSIONS]


def beginning(*fields: str, text: str, of: Callable[[UUID], Any] = lambda first: first) -> Q | None:
    """The condition that one of these ids begins with ``text``. None when no id can.

    ``of`` converts an id to what the fields hold.
    """
    digits = text.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    condition = Q()
    for field in fields:
        condition |= Q(**{f"{field}__gte": of(first), f"{field}__lte": of(last)})
    return condition
