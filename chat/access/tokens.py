"""Bearer tokens of programs: made, listed, revoked and recognised here and nowhere else."""

from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q, QuerySet
from django.utils import timezone
from knox.crypto import hash_token

from chat.models import ApiToken

# How old last_used_at may be: finer would turn every read of the API into a write.
_USE_NOTED_EVERY = timedelta(hours=1)


def create_token(user: AbstractBaseUser, name: str = "", expiry: timedelta | None = None) -> str:
    """A new token of ``user``'s, valid for ``expiry`` from now (None: until revoked).

    What is returned is the only copy; the database keeps a digest.
    """
    _, token = ApiToken.objects.create(user, expiry=expiry, name=name)
    return token


def tokens_of(user: AbstractBaseUser) -> QuerySet[ApiToken]:
    """The user's tokens, newest first, expired ones included."""
    return ApiToken.objects.filter(user=user)


def revoke(user: AbstractBaseUser, token_id: int) -> bool:
    """End one of the user's own tokens; whether there was one."""
    deleted, _ = ApiToken.objects.filter(user=user, id=token_id).delete()
    return bool(deleted)


def recognise(token: str) -> ApiToken | None:
    """The row of a token that is good now, with its user; None when it is unknown, revoked, expired or
    its user is deactivated.
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
    """Remember, to the hour, that the token was used."""
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - _USE_NOTED_EVERY:
        ApiToken.objects.filter(id=token.id).update(last_used_at=now)


def _good() -> QuerySet[ApiToken]:
    unexpired = Q(expiry__isnull=True) | Q(expiry__gt=timezone.now())
    return ApiToken.objects.select_related("user").filter(unexpired, user__is_active=True)
