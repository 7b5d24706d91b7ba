"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``, whatever happens under /v1/.

``code`` is the word of our own wire contract, but for the two that OpenAI's clients know:
``invalid_api_key`` and ``model_not_found``. An error about a run that was started has its id as ``run``.
"""

from http import HTTPStatus
from typing import Any

from rest_framework.response import Response

from chat.api import errors
from runs.errors import EngineError
from runs.operations import Data

_TYPES = {
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class Refused(EngineError):
    """The request is not valid."""

    code = "invalid"
    status = HTTPStatus.BAD_REQUEST

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param  # the field that is wrong


class Unsupported(Refused):
    """The request asks for something that an agent cannot be asked for."""

    code = "unsupported_parameter"


class ModelNotFound(Refused):
    """There is no agent of that name."""

    code = "model_not_found"
    status = HTTPStatus.NOT_FOUND


class RunFailed(EngineError):
    """A run that was started came to no answer. To ask again would run the agent, and its tools, again."""

    def __init__(self, run: Data, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.run = run
        self.status = status
        self.code = code

    def body(self) -> Data:
        """The error, as it also ends a stream."""
        found = body(self.status, self.code, self.message)
        found["error"]["run"] = self.run["id"]
        return found


def body(status: int, code: str, message: str, param: str | None = None) -> Data:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    if status == HTTPStatus.UNAUTHORIZED:
        code = "invalid_api_key"
    kind = _TYPES.get(HTTPStatus(status), kind)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def run_headers(run: Data) -> dict[str, str]:
    """What tells a client where its answer comes from."""
    return {"X-Session-Id": run["session"], "X-Run-Id": run["id"], "X-Request-Id": run["id"]}


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """The answer to an exception of a view; None for an unexpected one, which Django logs as a 500."""
    answer = errors.handle(error, context)
    if answer is None:
        return None
    found = answer.data["error"]
    answer.data = body(answer.status_code, found["code"], found["message"], getattr(error, "param", None))
    if isinstance(error, RunFailed):
        answer.data = error.body()
        for name, value in run_headers(error.run).items():
            answer.headers[name] = value
    if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS and "Retry-After" not in answer.headers:
        answer.headers["Retry-After"] = "1"
    if isinstance(error, RunFailed) or answer.status_code == HTTPStatus.CONFLICT:
        # Otherwise OpenAI's clients repeat the request by themselves.
        answer.headers["X-Should-Retry"] = "false"
    return answer


class Errors(errors.Errors):
    """Middleware: what Django itself answers under /v1/ takes this form, too."""

    prefix = "/v1/"

    def form(self, status: int, code: str, message: str) -> dict[str, Any]:
        return body(status, code, message)
