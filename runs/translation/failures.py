"""Why a turn failed: a code, and a sentence for the person who reads it."""

import re
from collections.abc import Iterator

from langgraph.errors import GraphRecursionError, NodeCancelledError

from runs.foundation.database import DATABASE_UNAVAILABLE
from runs.lifecycle.endings import Failure
from runs.states import ErrorCode
from runs.translation.callbacks import RaisedErrors

DATABASE_AWAY = Failure(
    ErrorCode.INTERNAL, "The database did not answer for so long that this turn could not go on."
)
INTERNAL = Failure(
    ErrorCode.INTERNAL, "Something went wrong inside the agent. The operators find the details in the log."
)


def explain(error: BaseException, errors: RaisedErrors) -> Failure:
    """The Error of a run whose graph raised ``error``.

    That may be raised from one of ``errors``; an exception may say itself what it is by an attribute
    ``error_code``, and by ``user_message`` a sentence for the user.
    """
    if isinstance(error, GraphRecursionError):
        return Failure(ErrorCode.STEP_LIMIT, _of_step_limit(error))
    if isinstance(error, NodeCancelledError):
        return Failure(ErrorCode.TOOL, "A tool or step of the agent cancelled itself.")
    for cause in causes(error):
        if (code := getattr(cause, "error_code", None)) in ErrorCode.values:
            return Failure(ErrorCode(code), getattr(cause, "user_message", None) or _said(cause))
        if any(cause is one for one in errors.of_provider):
            return Failure(ErrorCode.PROVIDER, _of_provider(cause))
        if any(cause is one for one in errors.of_tools):
            return Failure(ErrorCode.TOOL, f"A tool failed: {_said(cause)}")
        if isinstance(cause, DATABASE_UNAVAILABLE):
            return DATABASE_AWAY
    return INTERNAL


def _of_step_limit(error: GraphRecursionError) -> str:
    """With the limit that was reached, which may be that of a graph inside. Only these words have it."""
    limit = re.search(r"limit of (\d+)", str(error))
    steps = f"{limit[1]} steps, its limit," if limit else "as many steps as it may"
    return f"The agent took {steps} without an answer."


def causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _of_provider(error: BaseException) -> str:
    """By the HTTP status where the client library tells it: its own words may quote keys and addresses."""
    match getattr(error, "status_code", None):
        case 401 | 403:
            return "The model's provider refused the credentials of this server."
        case 404:
            return "The model's provider does not know the configured model."
        case 408 | 504:
            return "The model's provider did not answer in time."
        case 429:
            return "The model's provider is busy, or the quota there is used up. Try again later."
        case int() as status if status >= 500:
            return f"The model's provider had an error of its own ({status}). Try again later."
        case int() as status:
            return f"The model's provider refused the request ({status}): {_said(error)}"
        case _:
            return f"The model's provider broke off: {_said(error)}"


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"
