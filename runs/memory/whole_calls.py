"""One assistant message with none but whole calls, in every place where providers' clients keep them.

A call that was cut, or that cannot be read, must be gone everywhere: from the message's calls, from the
blocks of its content, from ``additional_kwargs``. Clients send on what they find there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, ToolCall, ToolMessage, message_chunk_to_message

# Blocks of a content list that spell a call out: Anthropic, OpenAI's Responses API, LangChain's own.
_CALL_BLOCKS = frozenset(
    (
        "tool_use",
        "input_json_delta",
        "function_call",
        "custom_tool_call",
        "tool_call",
        "tool_call_chunk",
        "invalid_tool_call",
    )
)
# Calls that the provider runs itself; the result is a block of the same message.
_SERVER_CALL_BLOCKS = frozenset(
    ("server_tool_use", "mcp_tool_use", "server_tool_call", "server_tool_call_chunk")
)
_THOUGHT_BLOCKS = frozenset(("reasoning", "thinking", "redacted_thinking"))


def whole_message(
    message: AIMessage, results: Mapping[str, ToolMessage], *, is_legacy_call: bool = False
) -> tuple[AIMessage | None, int]:
    """The message with none but whole calls, None if nothing is left, and how many calls were dropped.

    It is the same object if it is so already. ``results`` are those of its calls, by id; a legacy call is
    answered by the FunctionMessage behind it.
    """
    whole = (
        cast(AIMessage, message_chunk_to_message(message)) if isinstance(message, AIMessageChunk) else message
    )
    calls: dict[str, ToolCall] = {}
    for call in whole.tool_calls:
        if call["id"] and call["name"]:
            calls.setdefault(call["id"], call)
    # A broken call that was answered (with an error, to let the model try again) has to stay, as a call
    # that can be sent: clients send the broken arguments as they are, and providers refuse them.
    mended: dict[str, ToolCall] = {}
    for broken in whole.invalid_tool_calls:
        call_id = broken["id"] or ""
        if call_id in results and call_id not in calls and (name := broken["name"] or results[call_id].name):
            mended[call_id] = ToolCall(type="tool_call", id=call_id, name=name, args={})
    dropped = len(whole.tool_calls) + len(whole.invalid_tool_calls) - len(calls) - len(mended)
    content = _whole_content(whole.content, calls, mended)
    kwargs = _whole_kwargs(whole.additional_kwargs, calls, is_legacy_call)
    if dropped or mended or content is not whole.content or kwargs is not whole.additional_kwargs:
        metadata = whole.response_metadata
        # With the provider's id of the response its client would send only what follows, and the
        # provider would take the response as it remembers it.
        metadata = {key: value for key, value in metadata.items() if key != "id"}
        whole = whole.model_copy(
            update={
                "tool_calls": [*calls.values(), *mended.values()],
                "invalid_tool_calls": [],
                "content": content,
                "additional_kwargs": kwargs,
                "response_metadata": metadata,
            }
        )
    says_something = (
        whole.tool_calls or whole.text.strip() or is_legacy_call or _has_other_content(whole.content)
    )
    return (whole if says_something else None), dropped


def _whole_content(
    content: str | list[Any], calls: Mapping[str, Any], mended: Mapping[str, Any]
) -> str | list[Any]:
    """The content without blocks of calls that are gone; the same object if there are none."""
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)]
    asked = {block.get("id") for block in blocks if block.get("type") in _SERVER_CALL_BLOCKS}
    answered = {_answers(block) for block in blocks}

    def stays(block: Any) -> bool:
        if not isinstance(block, dict):
            return True
        kind = str(block.get("type", ""))
        if kind in _CALL_BLOCKS:
            return (block.get("call_id") or block.get("id")) in calls
        if kind in _SERVER_CALL_BLOCKS:
            return block.get("id") in answered
        if kind.endswith("tool_result"):
            return _answers(block) in asked
        # Searches and the like of the Responses API carry their state themselves.
        return not (
            kind.endswith("_call") and block.get("status") in ("in_progress", "searching", "incomplete")
        )

    kept = [block for block in content if stays(block)]
    if len(kept) == len(content):
        return content
    # A thought must be followed by what it led to; that may just have gone.
    while kept and isinstance(kept[-1], dict) and kept[-1].get("type") in _THOUGHT_BLOCKS and not mended:
        kept.pop()
    return kept


def _answers(block: Mapping[str, Any]) -> Any:
    """The id of the server-side call whose result this block is."""
    return block.get("tool_use_id") or block.get("tool_call_id")


def _whole_kwargs(kwargs: dict[str, Any], calls: Mapping[str, Any], is_legacy_call: bool) -> dict[str, Any]:
    """``additional_kwargs`` without calls that are gone; OpenAI's client would send them."""
    listed: Sequence[Any] = kwargs.get("tool_calls") or ()
    left = [call for call in listed if call.get("id") in calls]
    if len(left) == len(listed) and ("function_call" not in kwargs or is_legacy_call):
        return kwargs
    rest = {key: value for key, value in kwargs.items() if key not in ("tool_calls", "function_call")}
    if left:
        rest["tool_calls"] = left
    if "function_call" in kwargs and is_legacy_call:
        rest["function_call"] = kwargs["function_call"]
    return rest


def _has_other_content(content: str | list[Any]) -> bool:
    """Pictures, sound, results of searches: something that is neither text nor a thought."""
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") not in _THOUGHT_BLOCKS | {"text", "output_text"}
        for block in content
    )
