"""The login of a connection, and whether it is still valid.

A socket or a stream may outlast its login. It keeps the Login it was opened with, which is checked again from
time to time.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import cast

from django.conf import settings
from django.contrib.auth import (
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
    get_user_model,
    load_backend,
)
from django.contrib.auth.models import AbstractBaseUser
from django.utils.crypto import constant_time_compare
from rest_framework.request import Request

from chat.access import tokens
from chat.models import ApiToken


@dataclass(frozen=True, slots=True)
class Login:
    """A user, with the browser session or the API token that authenticated them."""

    user: AbstractBaseUser
    session_key: str | None = None
    token_id: int | None = None


def login_of(request: Request) -> Login:
    """The Login of a request that REST framework has authenticated."""
    user = cast(AbstractBaseUser, request.user)
    if isinstance(request.auth, ApiToken):
        return Login(user, token_id=request.auth.id)
    return Login(user, session_key=request.session.session_key)


def by_token(token: str) -> Login | None:
    """The Login of a bearer token; None when the token is not valid."""
    row = tokens.recognise(token)
    if row is None:
        return None
    tokens.note_use(row)
    return Login(row.user, token_id=row.id)


def by_session(session_key: str) -> Login | None:
    """The Login of a browser session; None when nobody is logged in with it any more.

    Django's own lookup deletes an invalid session. This one only reads, so that it may run beside
    the requests of the same browser.
    """
    if not session_key.isalnum():
        return None
    session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    try:
        user_id = get_user_model()._meta.pk.to_python(session[SESSION_KEY])
        backend = session[BACKEND_SESSION_KEY]
    except KeyError:
        return None
    if backend not in settings.AUTHENTICATION_BACKENDS:
        return None
    user = load_backend(backend).get_user(user_id)
    if user is None or not _was_made_with_this_password(user, session.get(HASH_SESSION_KEY, "")):
        return None
    return Login(user, session_key=session_key)


def still_holds(login: Login) -> bool:
    """Whether the user is active and the session or token valid now."""
    if login.token_id is not None:
        return tokens.still_good(login.token_id) is not None
    if login.session_key is not None:
        now = by_session(login.session_key)
        return now is not None and now.user.pk == login.user.pk
    return False


def _was_made_with_this_password(user: AbstractBaseUser, session_hash: str) -> bool:
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(session_hash, known) for known in hashes)
