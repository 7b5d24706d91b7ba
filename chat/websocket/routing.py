"""The addresses of the WebSockets, and the check of their logins.

A handshake without a valid login is refused with a 403. While the database is unavailable it is answered
with a 503, and the client may try again.

A bearer token in the Authorization header needs no Origin: no browser sends one by itself. A session cookie
does come by itself, from any site's page, so with a cookie the Origin must be there and be ours. An Origin
that is there and is foreign is refused whatever comes with it. Ours is an Origin whose host and port are
those of the Host header (and whose scheme is https where we are reached over https), or one that
CSRF_TRUSTED_ORIGINS names, which is what a proxy that rewrites Host needs.
"""

import asyncio
import json
import logging
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from channels.routing import URLRouter
from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.urls import path, re_path

from chat.access import logins
from chat.access.authentication import bearer_token
from chat.access.logins import Login
from chat.api.errors import body
from chat.websocket.consumers import SessionConsumer, SessionListConsumer
from runs.errors import DatabaseUnavailable
from runs.foundation.database import DATABASE_UNAVAILABLE, in_thread

logger = logging.getLogger(__name__)

# Seconds to find out who it is. The server gives up on a handshake after 5, without an answer.
LOGIN_WITHIN = 4.0


async def deny(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Refuse a handshake, which the server answers with a 403."""
    await receive()
    await send({"type": "websocket.close"})


async def answer_unavailable(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer a handshake with a 503 that has the form of REST's errors."""
    await receive()
    unavailable = DatabaseUnavailable()
    headers = [(b"Content-Type", b"application/json"), (b"Retry-After", b"1")]
    content = json.dumps(body(unavailable.code, unavailable.message)).encode()
    # An extension of ASGI that our server knows.
    await send({"type": "websocket.http.response.start", "status": unavailable.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": content})


class LoginMiddleware:
    """ASGI middleware: passes sockets of our own pages and of valid tokens on, with ``scope["login"]``."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        try:
            async with asyncio.timeout(LOGIN_WITHIN):
                login = await self._login(scope)
        except (*DATABASE_UNAVAILABLE, TimeoutError) as error:
            logger.warning("A handshake is put off, since the database does not answer: %r", error)
            await answer_unavailable(scope, receive, send)
            return
        if login is None:
            await deny(scope, receive, send)
        else:
            await self._application({**scope, "login": login, "user": login.user}, receive, send)

    async def _login(self, scope: dict[str, Any]) -> Login | None:
        request = _as_request(scope)
        if request is None:
            return None
        token = bearer_token(request.headers.get("Authorization", ""))
        origin = request.headers.get("Origin")
        if not (is_allowed_origin(origin, request) if origin is not None else token is not None):
            return None
        if token is not None:
            return await in_thread(logins.by_token, token)
        return await in_thread(logins.by_session, request.COOKIES.get(settings.SESSION_COOKIE_NAME, ""))


def is_allowed_origin(origin: str, request: HttpRequest) -> bool:
    """Whether a page of this origin may open sockets with its user's cookie."""
    try:
        parts = urlsplit(origin)
        host = request.get_host()
    except (ValueError, DisallowedHost):
        return False
    if origin.lower() != f"{parts.scheme}://{parts.netloc}".lower():
        return False  # an origin has no path, nor anything else behind its port
    schemes = ("https",) if request.is_secure() else ("http", "https")
    if parts.scheme in schemes and parts.netloc.lower() == host.lower():
        return True
    return any(_is_trusted(parts.scheme, parts.netloc, trusted) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _is_trusted(scheme: str, netloc: str, trusted: str) -> bool:
    known = urlsplit(trusted)
    if scheme != known.scheme:
        return False
    if known.netloc.startswith("*."):
        return netloc.lower().endswith(known.netloc[1:].lower())
    return netloc.lower() == known.netloc.lower()


def _as_request(scope: dict[str, Any]) -> HttpRequest | None:
    """The handshake as a request of Django's, which knows how to read hosts, cookies and proxies."""
    scheme = "https" if scope.get("scheme") == "wss" else "http"
    try:
        return ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, BytesIO())
    except UnicodeDecodeError:
        return None


# Django's types know of its own views only; channels routes to ASGI applications by the same functions.
_list: Any = SessionListConsumer.as_asgi()
_session: Any = SessionConsumer.as_asgi()
_nothing: Any = deny

websocket_application = LoginMiddleware(
    URLRouter(
        [
            path("ws/sessions/", _list),
            path("ws/sessions/<str:session_id>/", _session),
            re_path("", _nothing),
        ]
    )
)
