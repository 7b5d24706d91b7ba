"""What a client says to be let in."""

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore

from runs.foundation.database import in_thread

UNKNOWN = "5c5b2f6e-7d0e-4a53-9d0b-000000000000"  # the same in every process that collects the tests
HOST = {"host": "chat.example"}


def cookie_of(user: User) -> dict[str, str]:
    """The cookie of a new login."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return {"cookie": f"sessionid={session.session_key}"}


async def with_cookie(user: User) -> dict[str, str]:
    """The headers of a page of ours on which somebody has logged in."""
    return {**HOST, "origin": "http://chat.example", **await in_thread(cookie_of, user)}
