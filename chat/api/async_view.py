"""An asynchronous version of REST framework's APIView, so that a call that waits or streams holds no thread.

Authentication, permissions, parsing and errors are REST framework's own methods. Only ``dispatch`` differs:
what may touch the database runs in a database thread.
"""

import json
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.permissions import SAFE_METHODS, BasePermission, IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from chat.access.authentication import BearerAuthentication, SessionAuthentication
from chat.api.errors import TooLarge, handle
from runs.foundation.database import in_thread

EVENT_STREAM = "text/event-stream"
JSON = "application/json"


class ObjectParser(JSONParser):
    """Takes a JSON object of limited size and nothing else."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> dict[str, Any]:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        text = stream.read(limit + 1)
        if len(text) > limit:
            raise TooLarge
        return as_object(text) if text else {}


def as_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in ``text``. Raises ParseError or ValidationError with a sentence on what is wrong."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ParseError("This JSON is nested too deeply.") from None
    except ValueError as error:
        raise ParseError(f"This is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValidationError("A JSON object is expected.")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


class AlwaysJson(BaseContentNegotiation):
    """Answers in JSON whatever Accept says, so that an error is never replaced by a 406."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        given = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, renderer.media_type


def accepts(request: Request, media_type: str) -> bool:
    """Whether Accept names exactly this type; ``*/*`` names none."""
    return any(
        part.partition(";")[0].strip().lower() == media_type
        for part in request.headers.get("Accept", "").split(",")
    )


def actor_of(request: Request) -> AbstractBaseUser:
    """The user who calls; anonymous ones have been turned away by the permission."""
    return cast(AbstractBaseUser, request.user)


class AsyncView(APIView):
    """The base of all views of the API. Handlers are coroutines; none may block."""

    authentication_classes: Sequence[type[BaseAuthentication]] = (BearerAuthentication, SessionAuthentication)
    permission_classes: Sequence[type[BasePermission]] = (IsAuthenticated,)
    parser_classes = (ObjectParser,)
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = AlwaysJson
    http_method_names = ["get", "head", "options", "post", "patch", "delete"]

    async def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # type: ignore[override]
        """Name the methods of this address, and nothing else: the description is at /api/schema/."""
        return Response(status=HTTPStatus.NO_CONTENT, headers={"Allow": ", ".join(self.allowed_methods)})

    def get_exception_handler(self) -> Any:
        return handle

    async def dispatch(  # type: ignore[override]
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        self.args, self.kwargs = args, kwargs
        self.headers = self.default_response_headers
        if "Transfer-Encoding" in request.headers:
            # REST framework takes a request that does not say its length for one without a body.
            request.META["CONTENT_LENGTH"] = str(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
        self.request = self.initialize_request(request, *args, **kwargs)
        try:
            await in_thread(self._admit, self.request)
            name = (request.method or "").lower()
            refuse: Any = self.http_method_not_allowed
            handler = getattr(self, name, refuse) if name in self.http_method_names else refuse
            response = await handler(self.request, *args, **kwargs)
        # REST framework turns what it knows into an answer and raises the rest again.
        except Exception as error:  # noqa: BLE001
            response = self.handle_exception(error)
        return self.finalize_response(self.request, response, *args, **kwargs)

    def _admit(self, request: Request) -> None:
        self.initial(request, *self.args, **self.kwargs)
        if request.method not in SAFE_METHODS:
            _ = request.data  # reads and parses the body here, off the loop
