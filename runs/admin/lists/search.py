"""Looking for sessions by words: the name of their owner, or what is in their title."""

from uuid import UUID

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import QuerySet
from django.http import HttpRequest

from runs import operators
from runs.admin.lists import paging
from runs.models import Session

# Accounts that a part of a name may stand for, and sessions that words lead to, the latest ones.
OWNERS = 20
SESSIONS = 2_000


def sessions_found(request: HttpRequest, actor: AbstractBaseUser, words: str) -> list[UUID]:
    """Ids of sessions whose owner is called so, or whose title has these words, if the actor may read it."""
    sessions = Session.objects.order_by("-updated_at", "-id")
    titled = paging.among_first(request, sessions).filter(operators.readable(actor, "owner"))
    return [
        *_ids(request, sessions.filter(owner__in=_called(request, words))),
        *_ids(request, titled.filter(title__icontains=words)),
    ]


def _called(request: HttpRequest, words: str) -> list[int]:
    """Keys of the accounts with this in their name, the one that is called just so first."""
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
