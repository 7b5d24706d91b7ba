"""Read a model's answer strictly, so that nothing the model did not spell out is ever executed.

A streamed tool call arrives as pieces of JSON. LangChain completes what is cut or broken by guessing, so
that ``{"path": "/tmp`` becomes a call with a path that nobody asked for. Here a call whose arguments are no
JSON object, or one that cannot be stored, is broken: it stays in the message, with empty arguments, so that
the history is well-formed for any provider, and gets a result that tells the model what was wrong.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.utils import message_chunk_to_message
from langchain_core.runnables import Runnable

from chat.agent.characters import replace_unstorable
from runs.foundation.values import clean

BROKEN_CALL = "broken call"  # the artifact of a result that was written here and by no tool
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CUT_OFF = ("length", "max_tokens")  # a provider's words for an answer that met the token limit
_MAX_QUOTED = 200  # characters of what the model wrote
_MAX_DEPTH = 50  # objects and lists inside each other; checkpoints take some 250
_TOO_DEEP = f"The arguments are nested deeper than {_MAX_DEPTH} levels."
_INTEGERS = range(-(2**63), 2**64)  # what checkpoints take, signed or unsigned
_MAX_DIGITS = 20  # of such an integer, with its sign; longer ones are not even converted


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that may go into the history."""

    message: AIMessage  # each of its calls has an id of its own, a name and an object as arguments
    errors: list[ToolMessage]  # a result for each broken call, in the order of the calls


@dataclass(frozen=True, slots=True)
class _Asked:
    """A tool call as the model spelled it."""

    id: str
    name: str
    arguments: Any  # an object, if it is well-formed; else the text
    fault: str | None  # what is wrong with it


async def stream(
    model: Runnable[LanguageModelInput, AIMessage], messages: Sequence[BaseMessage]
) -> AIMessageChunk:
    """The whole answer, streamed, with the pieces of its calls as they came."""
    chunks = [chunk async for chunk in model.astream(list(messages)) if isinstance(chunk, AIMessageChunk)]
    if not chunks:
        return AIMessageChunk(content="")
    first, *rest = chunks
    return first + rest  # all at once, since one by one is quadratic


def read(whole: AIMessageChunk, known: Collection[str], taken: Collection[str]) -> Answer:
    """The answer with its text replace_unstorable and its calls checked.

    ``known`` names the tools there are; ``taken`` are ids of calls that the history holds already, which
    some providers give out again and again.
    """
    message = cast("AIMessage", message_chunk_to_message(whole))
    asked = list(_asked(whole, known, taken))
    calls = [
        ToolCall(type="tool_call", id=call.id, name=call.name, args={} if call.fault else call.arguments)
        for call in asked
    ]
    if calls != message.tool_calls or any(call.fault for call in asked):
        # A provider's own form of the calls, among the blocks or beside them, would contradict ours.
        kept = {key: value for key, value in message.additional_kwargs.items() if key != "tool_calls"}
        message = message.model_copy(
            update={
                "content": str(message.text),
                "tool_calls": calls,
                "invalid_tool_calls": [],
                "additional_kwargs": kept,
            }
        )
    return Answer(replace_unstorable(message), [_error(call) for call in asked if call.fault])


def is_broken_call(message: AnyMessage) -> bool:
    """Whether this is the result of a broken call."""
    return isinstance(message, ToolMessage) and message.artifact == BROKEN_CALL


def _asked(whole: AIMessageChunk, known: Collection[str], taken: Collection[str]) -> Iterator[_Asked]:
    used = set(taken)
    cut_off = (
        whole.response_metadata.get("finish_reason", whole.response_metadata.get("stop_reason")) in _CUT_OFF
    )
    for number, piece in enumerate(whole.tool_call_chunks, start=1):
        call_id = clean(piece["id"] or "")
        if not call_id or call_id in used:
            call_id = f"call_{uuid4().hex}"
        used.add(call_id)
        name = piece["name"] or ""
        arguments, fault = _object(piece["args"] or "{}")
        if cut_off and not piece["args"] and number == len(whole.tool_call_chunks):
            fault = "The answer was cut off before the arguments."
        if not _NAME.fullmatch(name):
            fault = f"The name of the tool, {_quoted(name)}, is not valid."
            name = "unknown"
        elif name not in known:
            fault = f"There is no tool {_quoted(name)}. There are: {', '.join(sorted(known)) or 'none'}."
        yield _Asked(call_id, name, arguments, fault)


class _Unfit(ValueError):
    """What is wrong with arguments that Python reads and checkpoints or providers refuse."""


def _object(text: str) -> tuple[Any, str | None]:
    """The arguments and what is wrong with them."""
    try:
        arguments = json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except _Unfit as unfit:
        return text, str(unfit)
    except RecursionError:
        return text, _TOO_DEEP
    except ValueError:
        return text, f"The arguments are no JSON, or were cut off: {_quoted(text)}."
    if not isinstance(arguments, dict):
        return text, f"The arguments must be a JSON object, not {_quoted(text)}."
    return arguments, _TOO_DEEP if _is_too_deep(arguments) else None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS or int(digits) not in _INTEGERS:
        raise _Unfit(f"The arguments have a number of more than 64 bits: {_quoted(digits)}.")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _Unfit(f"The arguments have a number that is too large: {_quoted(digits)}.")
    return number


def _constant(name: str) -> None:
    raise _Unfit(f"The arguments have {name}, which is no number of JSON.")


def _is_too_deep(arguments: dict[str, Any]) -> bool:
    level: list[Any] = [arguments]
    for _ in range(_MAX_DEPTH):
        inside = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in inside if isinstance(item, dict | list)]
    return bool(level)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


def _error(call: _Asked) -> ToolMessage:
    return ToolMessage(
        f"This call was not run. {call.fault} Please try again.",
        tool_call_id=call.id,
        name=call.name,
        status="error",
        artifact=BROKEN_CALL,
    )
