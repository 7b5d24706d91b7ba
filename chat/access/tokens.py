"""API tokens: create, list, revoke and recognise them. No other module touches their table."""

from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q, QuerySet
from django.utils import timezone
from knox.crypto import hash_token

from chat.models import ApiToken

# How exact last_used_at is. Without this each read of the API would be a write.
_USE_NOTED_EVERY = timedelta(hours=1)


def create_token(user: AbstractBaseUser, name: str = "", expiry: timedelta | None = None) -> str:
    """Create a token, valid for ``expiry`` from now (None: until revoked).

    The returned text is the only copy. The database stores a digest.
    """
    _, token = ApiToken.objects.create(user, expiry=expiry, name=name)
    return token


def tokens_of(user: AbstractBaseUser) -> QuerySet[ApiToken]:
    """The user's tokens, newest first, expired ones included."""
    return ApiToken.objects.filter(user=user)


def revoke(user: AbstractBaseUser, token_id: int) -> bool:
    """Delete one of the user's tokens; False if there is none of this id."""
    deleted, _ = ApiToken.objects.filter(user=user, id=token_id).delete()
    return bool(deleted)


def recognise(token: str) -> ApiToken | None:
    """The row of a valid token, with its user.

    None when the token is unknown, revoked or expired, or its user is deactivated.
    """
    try:
        digest = hash_token(token)
    except UnicodeError:  # a lone surrogate; no token of ours has one
        return None
    return _good().filter(digest=digest).first()


def still_good(token_id: int) -> ApiToken | None:
    """The same for a token that was recognised before."""
    return _good().filter(id=token_id).first()


def note_use(token: ApiToken) -> None:
    """Record, to the hour, that the token was used."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - _USE_NOTED_EVERY:
        ApiToken.objects.filter(id=token.id).update(last_used_at=now)


def _good() -> QuerySet[ApiToken]:
    unexpired = Q(expiry__isnull=True) | Q(expiry__gt=timezone.now())
    return ApiToken.objects.select_related("user").filter(unexpired, user__is_active=True)
