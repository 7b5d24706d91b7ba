"""Remove incomplete calls from one assistant message, in every place where providers' clients keep calls.

A call that was cut off or cannot be read must be removed from the message's calls, from the blocks of its
content and from ``additional_kwargs``: clients send what they find in any of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, ToolCall, ToolMessage, message_chunk_to_message

# Content blocks that contain a call: Anthropic, OpenAI's Responses API, LangChain's own.
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
# Calls that the provider executes; their results are blocks of the same message.
_SERVER_CALL_BLOCKS = frozenset(
    ("server_tool_use", "mcp_tool_use", "server_tool_call", "server_tool_call_chunk")
)
_REASONING_BLOCKS = frozenset(("reasoning", "thinking", "redacted_thinking"))


def drop_incomplete_calls(
    message: AIMessage, results: Mapping[str, ToolMessage], *, is_legacy_call: bool = False
) -> tuple[AIMessage | None, int]:
    """The message without incomplete calls (None if nothing is left), and how many calls were dropped.

    It is the same object if nothing has to be changed. ``results`` are the results of its calls, by call id.
    ``is_legacy_call``: a FunctionMessage behind it is the result of its ``function_call``.
    """
    complete = (
        cast(AIMessage, message_chunk_to_message(message)) if isinstance(message, AIMessageChunk) else message
    )
    calls: dict[str, ToolCall] = {}
    for call in complete.tool_calls:
        if call["id"] and call["name"]:
            calls.setdefault(call["id"], call)
    # An invalid call that has a result (an error, so that the model tries again) must stay. Its arguments are
    # made empty: clients send the invalid ones as they are, and providers refuse them.
    emptied: dict[str, ToolCall] = {}
    for broken in complete.invalid_tool_calls:
        call_id = broken["id"] or ""
        if call_id in results and call_id not in calls and (name := broken["name"] or results[call_id].name):
            emptied[call_id] = ToolCall(type="tool_call", id=call_id, name=name, args={})
    dropped = len(complete.tool_calls) + len(complete.invalid_tool_calls) - len(calls) - len(emptied)
    content = _content_without(complete.content, calls, emptied)
    kwargs = _kwargs_without(complete.additional_kwargs, calls, is_legacy_call)
    if dropped or emptied or content is not complete.content or kwargs is not complete.additional_kwargs:
        metadata = complete.response_metadata
        # With the provider's id of the response, its client would send only what follows, and the provider
        # would use its own copy of the response.
        metadata = {key: value for key, value in metadata.items() if key != "id"}
        complete = complete.model_copy(
            update={
                "tool_calls": [*calls.values(), *emptied.values()],
                "invalid_tool_calls": [],
                "content": content,
                "additional_kwargs": kwargs,
                "response_metadata": metadata,
            }
        )
    says_something = (
        complete.tool_calls or complete.text.strip() or is_legacy_call or _has_other_content(complete.content)
    )
    return (complete if says_something else None), dropped


def _content_without(
    content: str | list[Any], calls: Mapping[str, Any], emptied: Mapping[str, Any]
) -> str | list[Any]:
    """The content without blocks of dropped calls; the same object if there are none."""
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
        # Blocks of the Responses API for searches and the like have their state in themselves.
        return not (
            kind.endswith("_call") and block.get("status") in ("in_progress", "searching", "incomplete")
        )

    kept = [block for block in content if stays(block)]
    if len(kept) == len(content):
        return content
    # A reasoning block must be followed by what it led to, which may have been dropped.
    while kept and isinstance(kept[-1], dict) and kept[-1].get("type") in _REASONING_BLOCKS and not emptied:
        kept.pop()
    return kept


def _answers(block: Mapping[str, Any]) -> Any:
    """The id of the server-side call whose result this block is."""
    return block.get("tool_use_id") or block.get("tool_call_id")


def _kwargs_without(kwargs: dict[str, Any], calls: Mapping[str, Any], is_legacy_call: bool) -> dict[str, Any]:
    """``additional_kwargs`` without dropped calls; OpenAI's client would send them."""
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
    """Whether there is something besides text and reasoning: images, audio, search results."""
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") not in _REASONING_BLOCKS | {"text", "output_text"}
        for block in content
    )
