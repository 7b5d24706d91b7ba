"""Why a turn failed: a code and a sentence for its user, and details for operators.

The user is told no word of an exception: it may hold keys, addresses and what others said.
"""

from dataclasses import replace

from django.conf import settings
from langgraph.errors import GraphRecursionError, NodeCancelledError

from runs.foundation.database import DATABASE_UNAVAILABLE
from runs.foundation.exceptions import attribute, causes, described
from runs.foundation.values import presentable
from runs.lifecycle.endings import Failure
from runs.states import ErrorCode
from runs.translation.callbacks import RaisedErrors

DATABASE_AWAY = Failure(
    ErrorCode.INTERNAL, "The database did not answer for so long that this turn could not go on."
)
INTERNAL = Failure(
    ErrorCode.INTERNAL, "Something went wrong inside the agent. The operators find the details in the log."
)
_BY_CODE = {
    ErrorCode.PROVIDER: "The model's provider broke off.",
    ErrorCode.TIMEOUT: "The turn took too long.",
    ErrorCode.STEP_LIMIT: "The agent took too many steps.",
    ErrorCode.TOOL: "A tool failed, and the agent could not go on without it.",
    ErrorCode.INTERNAL: INTERNAL.message,
}
_SENTENCE_LIMIT = 300


def explain(error: BaseException, errors: RaisedErrors) -> Failure:
    """The Failure of a run whose graph raised ``error``, with its details."""
    return with_details(kind_of(error, errors), error)


def with_details(failure: Failure, error: BaseException) -> Failure:
    """This failure, which ``error`` is the reason of."""
    return replace(failure, details=described(error))


def kind_of(error: BaseException, errors: RaisedErrors) -> Failure:
    """What the user is told of ``error``, which may be raised from one of ``errors``.

    An exception may say itself what it is by an attribute ``error_code``, and by ``user_message`` a sentence
    for the user.
    """
    if isinstance(error, GraphRecursionError):
        limit = settings.RUNS_STEP_LIMIT
        return Failure(ErrorCode.STEP_LIMIT, f"The agent took {limit} steps, its limit, without an answer.")
    if isinstance(error, NodeCancelledError):
        return Failure(ErrorCode.TOOL, "A tool or step of the agent cancelled itself.")
    for cause in causes(error):
        code = attribute(cause, "error_code")
        if isinstance(code, str) and code in ErrorCode.values:
            return _of_itself(cause, ErrorCode(code))
        if any(cause is one for one in errors.of_provider):
            return Failure(ErrorCode.PROVIDER, _of_provider(cause))
        if any(cause is one for one in errors.of_tools):
            return Failure(ErrorCode.TOOL, _BY_CODE[ErrorCode.TOOL])
        if isinstance(cause, DATABASE_UNAVAILABLE):
            return DATABASE_AWAY
    return INTERNAL


def _of_itself(error: BaseException, code: ErrorCode) -> Failure:
    said = attribute(error, "user_message")
    sentence = " ".join(presentable(said, _SENTENCE_LIMIT).split()) if isinstance(said, str) else ""
    return Failure(code, sentence or _BY_CODE[code])


def _of_provider(error: BaseException) -> str:
    """By the HTTP status where the client library tells it."""
    match attribute(error, "status_code"):
        case 401 | 403:
            return "The model's provider refused the credentials of this server."
        case 404:
            return "The model's provider does not know the configured model."
        case 408 | 504:
            return "The model's provider did not answer in time."
        case 429:
            return "The model's provider is busy, or the quota there is used up. Try again later."
        case int() as status if status >= 500:
            return f"The model's provider had an error of its own ({status:d}). Try again later."
        case int() as status:
            return f"The model's provider refused the request ({status:d})."
        case _:
            return _BY_CODE[ErrorCode.PROVIDER]
