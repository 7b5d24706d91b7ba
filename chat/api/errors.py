"""One form for every error under /api/: ``{"error": {"code", "message"}}``.

``handle`` makes it from what a view raises: errors of the engine, of REST framework and of Django. ``Errors``
is the middleware for answers that no view of ours made: an unknown address, a refused host, a crash.
"""

import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from asgiref.sync import markcoroutinefunction
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404, HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from rest_framework import exceptions
from rest_framework.response import Response
from typing_extensions import TypedDict  # Pydantic needs this one before Python 3.12

from chat.access.authentication import CsrfFailed
from chat.access.throttles import Throttled
from runs.errors import DatabaseUnavailable, EngineError
from runs.foundation.database import DATABASE_UNAVAILABLE
from runs.wire.contract import Keywords, Sentence

logger = logging.getLogger(__name__)

CODES = (
    "invalid", "unauthenticated", "forbidden", "csrf_failed", "not_found", "run_active", "not_waiting",
    "not_interrupted", "idempotency_conflict", "agent_mismatch", "cursor_gone", "too_large", "throttled",
    "unavailable", "internal",
)  # fmt: skip


class ErrorDetail(TypedDict):
    code: Annotated[str, Keywords(enum=list(CODES))]
    message: Sentence


class Error(TypedDict):
    """Every error has this form."""

    error: ErrorDetail


class TooLarge(exceptions.APIException):
    """The body is over the limit."""

    status_code = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = "The request is too large."


_CODES = {
    HTTPStatus.UNAUTHORIZED: "unauthenticated",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "not_found",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "throttled",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}
_SENTENCES = {
    "not_found": "There is no such thing, or it is not yours.",
    "forbidden": "You are not allowed to do this.",
    "csrf_failed": "A call with the session cookie needs the CSRF token in the header X-CSRFToken.",
    "internal": "Something went wrong on the server.",
    "invalid": "The request is not valid.",
}


def body(code: str, message: str) -> Error:
    return {"error": {"code": code, "message": message}}


def sentence(detail: Any, field: str = "") -> str:
    """REST framework's messages on an input, as one line that names the fields."""
    if isinstance(detail, dict):
        return " ".join(
            sentence(value, f"{field}.{name}" if field else str(name)) for name, value in detail.items()
        )
    if isinstance(detail, list):
        return " ".join(sentence(item, field) for item in detail)
    return f"{field}: {detail}" if field and field != "non_field_errors" else str(detail)


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to an exception of a view; None for an unexpected one, which Django logs as a 500."""
    if isinstance(error, DATABASE_UNAVAILABLE):
        logger.warning("The database did not do what was asked of it: %s", error)
        error = DatabaseUnavailable()
    if isinstance(error, EngineError):
        wait = error.wait if isinstance(error, Throttled) else None
        return Response(body(error.code, error.message), error.status, headers=_retry_after(wait))
    known = _as_api_exception(error)
    if known is None:
        return None
    headers = _retry_after(getattr(known, "wait", None))
    if challenge := getattr(known, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    code = known.default_code if isinstance(known, CsrfFailed) else code_of(known.status_code)
    return Response(body(code, sentence(known.detail)), known.status_code, headers=headers)


def code_of(status: int) -> str:
    """The code of the wire contract that goes with an HTTP status."""
    return _CODES.get(
        HTTPStatus(status), "internal" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid"
    )


def _as_api_exception(error: Exception) -> exceptions.APIException | None:
    if isinstance(error, Http404):
        return exceptions.NotFound(_SENTENCES["not_found"])
    if isinstance(error, PermissionDenied):
        return exceptions.PermissionDenied()
    if isinstance(error, RequestDataTooBig):
        return TooLarge()
    return error if isinstance(error, exceptions.APIException) else None


def _retry_after(wait: float | None) -> dict[str, str]:
    return {} if wait is None else {"Retry-After": str(max(math.ceil(wait), 1))}


class Errors:
    """Middleware: gives Django's own errors under /api/ this form. They are HTML or plain text otherwise."""

    sync_capable = False
    async_capable = True
    prefix = "/api/"

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self._get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = await self._get_response(request)
        if not request.path_info.startswith(self.prefix) or response.status_code < HTTPStatus.BAD_REQUEST:
            return response
        if response.headers.get("Content-Type", "").startswith("application/json"):
            return response
        return self._in_our_form(response)

    def form(self, status: int, code: str, message: str) -> Any:
        """The body of an error."""
        return body(code, message)

    def _in_our_form(self, response: HttpResponseBase) -> HttpResponseBase:
        code = code_of(response.status_code)
        message = _SENTENCES.get(code) or HTTPStatus(response.status_code).phrase
        ours = JsonResponse(self.form(response.status_code, code, message), status=response.status_code)
        for name in ("Allow", "Retry-After", "WWW-Authenticate"):
            if name in response.headers:
                ours.headers[name] = response.headers[name]
        ours.cookies = response.cookies
        return ours
