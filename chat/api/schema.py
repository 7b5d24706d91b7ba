"""The OpenAPI schema of everything under /api/.

``@operation`` stands on each handler and describes what is special about it. Authentication, the form of
errors and the limits of bodies are the same for all operations and are added here. The components are made
from the types that the handlers return: ``runs.wire.contract``, ``Page`` and ``Error``.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerFieldExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema

from chat.access.throttles import Throttled
from chat.api import inputs
from chat.api.async_view import EVENT_STREAM, JSON
from chat.api.errors import Error
from chat.api.paging import Page
from runs import errors
from runs.errors import EngineError
from runs.wire import contract

JsonSchema: TypeAlias = dict[str, Any]
Handler = TypeVar("Handler", bound=Callable[..., Any])

# What an operation that starts a turn may answer beside its own errors.
STARTING = (
    errors.AgentMismatch,
    errors.TooManyStragglers,
    errors.QueueFull,
    Throttled,
    errors.Unavailable,
)

_UNSAFE = ("post", "patch", "delete")
_WITHOUT_NUL = r"^[^\u0000]*$"
_WITHOUT_NUL_NOT_BLANK = r"^[^\u0000]*[^\u0000\s][^\u0000]*$"
_STREAM = """\
Server-sent events. `id` is the event's `seq`, `event` its type, `data` the whole Event on one line. Comments
keep the connection alive, and the stream ends after the run's terminal event."""


def operation(
    name: str,
    answers: Mapping[int, str],
    *,
    body: type[inputs.Input] | None = None,
    query: type[inputs.Input] | None = None,
    headers: Iterable[OpenApiParameter] = (),
    streams: bool = False,
    raises: Iterable[type[EngineError]] = (),
    tag: str | None = None,
) -> Callable[[Handler], Handler]:
    """Describe a handler by its docstring and these facts.

    ``answers`` gives the component that comes with each status, "" for none; ``streams`` says that events
    may come in place of JSON.
    """

    def describe(handler: Handler) -> Handler:
        summary, _, details = inspect.cleandoc(handler.__doc__ or "").partition("\n")
        documented: dict[Any, OpenApiResponse] = {
            (status, JSON): OpenApiResponse(_ref(component), description=f"The {component}.")
            if component
            else OpenApiResponse(None, description="Done.")
            for status, component in answers.items()
        }
        if streams:
            documented[200, EVENT_STREAM] = OpenApiResponse({"type": "string"}, description=_STREAM)
        refused = _errors(handler, raises, has_input=bool(body or query))
        documented |= {(status, JSON): answer for status, answer in refused.items()}
        created = [status for status in (201, 202) if answers.get(status) in ("Session", "Run")]
        location = header(
            "Location", "Where it can be read.", {"type": "string"}, required=True, response=created
        )
        return extend_schema(
            operation_id=name,
            summary=summary.rstrip("."),
            description=" ".join(details.split()),
            request=body,
            parameters=[
                *([query] if query else []),
                *headers,
                *([location] if created else []),
                *([_RETRY_AFTER] if 429 in refused else []),
            ],
            responses=dict(sorted(documented.items())),
            tags=[tag] if tag else None,
        )(handler)

    return describe


def _errors(
    handler: Callable[..., Any], raises: Iterable[type[EngineError]], *, has_input: bool
) -> dict[int, OpenApiResponse]:
    """The errors an operation may answer with, by status."""
    told: dict[int, dict[str, str]] = defaultdict(dict)
    told[401]["unauthenticated"] = "Nobody is logged in, or the token is not valid."
    known = list(raises)
    if set(inspect.signature(handler).parameters) & {"session_id", "run_id"}:
        known.append(errors.NotFound)
    if has_input or handler.__name__ in _UNSAFE:
        known.append(errors.Invalid)
    if handler.__name__ in _UNSAFE:
        told[403]["csrf_failed"] = "The session cookie came without its CSRF token."
        told[413]["too_large"] = "The body, or a text in it, is too large."
        told[415]["invalid"] = "A body must be JSON."
    for error in known:
        said = told[error.status].get(error.code)
        sentence = " ".join((error.__doc__ or "").split())
        told[error.status][error.code] = f"{said} Or: {sentence}" if said else sentence
    return {
        status: OpenApiResponse(
            {
                "allOf": [
                    _ref("Error"),
                    {"properties": {"error": {"properties": {"code": {"enum": list(codes)}}}}},
                ]
            },
            description="\n".join(f"- `{code}`: {sentence}" for code, sentence in codes.items()),
        )
        for status, codes in told.items()
    }


def header(name: str, about: str, type: JsonSchema, **options: Any) -> OpenApiParameter:
    """A header of the request, or with ``response`` of the answers with these statuses."""
    return OpenApiParameter(name, type, OpenApiParameter.HEADER, description=about, **options)


_RETRY_AFTER = header(
    "Retry-After",
    "Seconds after which to try again, where that is known.",
    {"type": "integer", "minimum": 1},
    response=[429],
)


@cache
def document() -> JsonSchema:
    """The whole OpenAPI document."""
    found: JsonSchema = SchemaGenerator().get_schema(public=True)
    return found


@cache
def components() -> dict[str, JsonSchema]:
    """The JSON Schema of each object that is sent, by name."""
    from pydantic import ConfigDict, TypeAdapter

    sent = (
        contract.Agent,
        contract.EventPage,
        contract.History,
        contract.Reconciliation,
        contract.Worker,
        Error,
        Page,
        *contract.EVENTS.values(),
    )
    union: Any = Union[sent]  # noqa: UP007  X | Y takes no tuple
    adapter: TypeAdapter[Any] = TypeAdapter(union, config=ConfigDict(use_attribute_docstrings=True))
    schema = adapter.json_schema(ref_template=_REF.replace("{}", "{model}"))
    found: dict[str, JsonSchema] = _without_titles(schema["$defs"])
    page, event = found.pop("Page"), found.pop("Event")
    for name in ("Agent", "Session", "Run", "Worker"):
        found[f"{name}Page"] = _with_properties(page, results={"type": "array", "items": _ref(name)})
    names = {str(type): f"{data.__name__}Event" for type, data in contract.EVENTS.items()}
    for type, data in contract.EVENTS.items():
        found[names[type]] = _with_properties(
            event, type={"type": "string", "const": str(type)}, data=found.pop(data.__name__)
        )
    found["Event"] = {
        "oneOf": [_ref(name) for name in names.values()],
        "discriminator": {
            "propertyName": "type",
            "mapping": {type: _REF.format(name) for type, name in names.items()},
        },
    }
    return found


_REF = "#/components/schemas/{}"


def _ref(component: str) -> JsonSchema:
    return {"$ref": _REF.format(component)}


def _with_properties(schema: JsonSchema, **properties: JsonSchema) -> JsonSchema:
    changed = deepcopy(schema)
    changed["properties"] |= properties
    return changed


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that Pydantic makes from names."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(part)
        for name, part in schema.items()
        if not (name == "title" and isinstance(part, str))
    }


# Hooks of drf-spectacular, named in the settings


def only_ours(endpoints: list[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Leave out the endpoints of other protocols."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith("/api/")]


def add_components(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the components that the responses refer to."""
    known = result.setdefault("components", {})
    known["schemas"] = {**known.get("schemas", {}), **components()}
    return result


# Extensions of drf-spectacular, which finds them by their class


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = "chat.access.authentication.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> JsonSchema:
        return {"type": "http", "scheme": "bearer", "description": "An API token, in the header only."}


class CookieScheme(OpenApiAuthenticationExtension):
    target_class = "chat.access.authentication.SessionAuthentication"
    name = "cookie"

    def get_security_definition(self, auto_schema: Any) -> JsonSchema:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": settings.SESSION_COOKIE_NAME,
            "description": "A browser's login. Every unsafe call needs the CSRF token, in `X-CSRFToken`.",
        }


class TextSchema(OpenApiSerializerFieldExtension):
    target_class = inputs.Text
    match_subclasses = True

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> JsonSchema:
        field = self.target
        shape: JsonSchema = {"type": "string"}
        if field.max_length:
            shape["maxLength"] = field.max_length
        if not field.allow_blank:
            shape["minLength"] = 1
        return {**shape, "pattern": _WITHOUT_NUL if field.allow_blank else _WITHOUT_NUL_NOT_BLANK}


class ChoiceSchema(OpenApiSerializerFieldExtension):
    target_class = inputs.Choice

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> JsonSchema:
        blank = [""] if self.target.allow_blank else []
        return {"type": "string", "enum": [*(str(choice) for choice in self.target.choices), *blank]}


class ByIdSchema(OpenApiSerializerFieldExtension):
    target_class = inputs.ById

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> JsonSchema:
        return {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {},
            "description": "The id of each question and its answer, which is any JSON value.",
        }


class SecondsSchema(OpenApiSerializerFieldExtension):
    target_class = inputs.Seconds

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> JsonSchema:
        return {"type": "number", "minimum": self.target.min_value, "maximum": self.target.max_value}
