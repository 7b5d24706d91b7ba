"""Read a request of OpenAI's protocol as a turn.

An agent has its own tools, instructions and sampling. Parameters that would change the form of the answer are
refused. Parameters that only tune a model (temperature, top_p, max_tokens, stop, seed, penalties, ``user``)
are ignored, and so are unknown ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError as DjangoValidationError
from rest_framework.exceptions import ValidationError

from chat.api.errors import sentence
from chat.api.inputs import Json
from chat.openai.errors import Refused, Unsupported
from runs.errors import TooLarge
from runs.states import OnDisconnect

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A turn, as it was asked for."""

    model: str  # the agent
    text: str  # the last message, which is the user's
    earlier: "list[BaseMessage]"  # those before it; of a session that exists already none is read
    stream: bool
    include_usage: bool  # on a chunk of its own at the end of the stream
    on_disconnect: OnDisconnect


def read(data: Mapping[str, Any], *, session_exists: bool) -> CompletionRequest:
    """Read the body of a request. Raises Refused, Unsupported and TooLarge, naming the field."""
    _refuse_unsupported(data)
    model = data.get("model")
    if not isinstance(model, str) or not model:
        raise Refused('"model" must name an agent; GET /v1/models lists them.', "model")
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused('"messages" must be a list that is not empty.', "messages")
    last = f"messages[{len(messages) - 1}]"
    if not isinstance(messages[-1], dict) or messages[-1].get("role") != "user":
        raise Refused("The last message must be the user's.", last)
    read_messages = messages[-1:] if session_exists else messages
    _refuse_unprintable(read_messages)
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise Refused('"stream_options" must be an object.', "stream_options")
    text = _text(messages[-1].get("content"), last)
    if not text.strip():
        raise Refused("The last message is empty. Write something.", last)
    return CompletionRequest(
        model=model,
        text=text,
        earlier=[_message(message, f"messages[{place}]") for place, message in enumerate(read_messages[:-1])],
        stream=_flag(data, "stream"),
        include_usage=_flag(options, "include_usage"),
        on_disconnect=_on_disconnect(data),
    )


def _refuse_unsupported(data: Mapping[str, Any]) -> None:
    for name, is_wanted in _UNSUPPORTED.items():
        if is_wanted(data.get(name)):
            raise Unsupported(f'"{name}" is not supported: an agent answers in its own way.', name)


def _is_not_text(value: Any) -> bool:
    return bool(value) and (not isinstance(value, dict) or value.get("type") != "text")


_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "tools": bool,  # an agent calls its own tools, and nobody else's
    "functions": bool,
    "n": lambda value: value not in (None, 1),
    "logprobs": bool,
    "top_logprobs": bool,
    "audio": bool,
    "modalities": lambda value: value not in (None, ["text"]),
    "response_format": _is_not_text,
}


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if not isinstance(value, bool | None):
        raise Refused(f'"{name}" must be true or false.', name)
    return bool(value)


def _on_disconnect(data: Mapping[str, Any]) -> OnDisconnect:
    """``cancel`` unless something else was asked for: nobody could come back to the run otherwise."""
    value = data.get("on_disconnect", OnDisconnect.CANCEL)
    if value not in OnDisconnect.values:
        raise Refused(f'"on_disconnect" must be one of: {", ".join(OnDisconnect.values)}.', "on_disconnect")
    return OnDisconnect(value)


# Messages


def _refuse_unprintable(messages: Sequence[Any]) -> None:
    for place, message in enumerate(messages):
        try:
            Json().to_internal_value(message)
        except DjangoValidationError as error:
            raise Refused(" ".join(error.messages), f"messages[{place}]") from None
        except ValidationError as error:
            raise Refused(sentence(error.detail), f"messages[{place}]") from None


def _message(message: Any, name: str) -> "BaseMessage":
    """One of the earlier messages as LangChain has it."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    if not isinstance(message, dict):
        raise Refused(f'"{name}" must be an object.', name)
    content = message.get("content")
    match message.get("role"):
        case "user":
            return HumanMessage(_text(content, name))
        case "system" | "developer":
            return SystemMessage(_text(content, name))
        case "assistant":
            if message.get("function_call"):
                raise Unsupported('"function_call" is not supported; use "tool_calls".', name)
            asked = message.get("tool_calls") or []
            if not isinstance(asked, list):
                raise Refused('"tool_calls" must be a list.', f"{name}.tool_calls")
            calls = [_call(one, f"{name}.tool_calls[{place}]") for place, one in enumerate(asked)]
            text = "" if content is None else _text(content, name)
            return AIMessage(text, tool_calls=calls)
        case "tool":
            call_id = message.get("tool_call_id")
            if not isinstance(call_id, str) or not call_id:
                raise Refused('A tool\'s message needs its "tool_call_id".', name)
            return ToolMessage(_text(content, name), tool_call_id=call_id)
    raise Refused('"role" must be one of: system, developer, user, assistant, tool.', name)


def _call(asked: Any, name: str) -> Any:
    """A tool call of an earlier answer."""
    function = asked.get("function") if isinstance(asked, dict) else None
    if not isinstance(function, dict):
        raise Unsupported("Only calls of functions are supported.", name)
    fields = (asked.get("id"), function.get("name"), function.get("arguments"))
    if not all(isinstance(field, str) for field in fields) or not fields[0] or not fields[1]:
        raise Refused("A tool call needs an id, a name and arguments.", name)
    try:
        args = json.loads(fields[2] or "{}")
        Json().to_internal_value(args)
    except (ValueError, RecursionError, DjangoValidationError, ValidationError):
        args = None
    if not isinstance(args, dict):
        raise Refused("The arguments of a tool call must be an object in JSON.", name)
    return {"type": "tool_call", "id": fields[0], "name": fields[1], "args": args}


def _text(content: Any, name: str) -> str:
    """A message's content: a text, or a list of parts that are texts."""
    if isinstance(content, list):
        content = "\n".join(_part(part, name) for part in content)
    if not isinstance(content, str):
        raise Refused('"content" must be a text or a list of text parts.', f"{name}.content")
    if len(content) > settings.RUNS_MESSAGE_LIMIT:
        raise TooLarge(f'"{name}" is longer than {settings.RUNS_MESSAGE_LIMIT:,} characters.')
    return content


def _part(part: Any, name: str) -> str:
    if not isinstance(part, dict):
        raise Refused("A part of a message must be an object.", f"{name}.content")
    if part.get("type") not in ("text", "refusal"):
        raise Unsupported("Only text parts are supported.", f"{name}.content")
    text = part.get(part["type"])
    if not isinstance(text, str):
        raise Refused("A text part needs its text.", f"{name}.content")
    return text
