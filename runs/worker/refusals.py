"""Answers that the graph refused: the user is asked again, and the turn does not fail."""

from collections.abc import Sequence

from langgraph.errors import GraphBubbleUp, is_invalid_resume
from pydantic import ValidationError

from runs.foundation.exceptions import causes, text_of_exception
from runs.foundation.values import presentable
from runs.states import ErrorCode
from runs.translation.failures import DATABASE_AWAY, kind_of
from runs.translation.translator import Translator

_DETAILS_LIMIT = 200


def reason_to_ask_again(
    error: BaseException, raised_at_answers: Sequence[Exception], translator: Translator
) -> str | None:
    """What to tell the user if ``error`` means that the graph refused an answer; else None.

    ``raised_at_answers`` is what tasks raised that had been given one. An answer that does not fit its schema
    is marked by LangGraph, and AnswerRefused has the same mark. Any other error of a node counts as a refusal
    if nothing else of the turn has begun since the answer. Any other error of a tool does not: nobody sees
    what the tool did with the answer before it raised, and asking again would make it do that again.
    """
    refused = next((cause for cause in causes(error) if any(cause is one for one in raised_at_answers)), None)
    if refused is None or not (is_invalid_resume(refused) or _is_refusal(error, refused, translator)):
        return None
    details = _details(refused)
    return f"The agent did not accept the answer{': ' if details else '.'}{details}"


def _is_refusal(error: BaseException, refused: BaseException, translator: Translator) -> bool:
    if isinstance(refused, GraphBubbleUp) or translator.has_begun_something():
        return False
    failure = kind_of(error, translator.errors)
    return failure.code == ErrorCode.INTERNAL and failure is not DATABASE_AWAY


def _details(refused: BaseException) -> str:
    """What is wrong with the value, in one short line. Only a ValueError's words are made for that."""
    if isinstance(refused, ValidationError):
        said = "; ".join(
            ": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"])))
            for one in refused.errors(include_url=False, include_input=False, include_context=False)
        )
    elif isinstance(refused, ValueError):
        said = text_of_exception(refused)
    else:
        return ""
    return " ".join(presentable(said, _DETAILS_LIMIT).split())
