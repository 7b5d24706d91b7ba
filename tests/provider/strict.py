"""What a strict provider refuses in a history."""

import json
from typing import Any

from tests.provider.script import Messages


def fault_in(messages: Messages, *, user_after_tool: bool = True) -> str | None:
    """Why this history is not well-formed, in the words of a provider; None when it is.

    Each tool call has exactly one result with its id, directly behind its message, before any other
    message; no result without a call; no call without a name or with arguments that are no JSON object; no
    message without content. Unless ``user_after_tool`` allows it, no user message right behind a result.
    """
    if not messages:
        return "[] is too short - 'messages'"
    open_calls: set[str] = set()
    previous = ""
    for number, message in enumerate(messages):
        where = f"messages.[{number}]"
        role = message.get("role")
        if role == "tool":
            result_of = message.get("tool_call_id")
            if result_of not in open_calls:
                return (
                    f"{where}: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls' (tool_call_id {result_of!r})."
                )
            open_calls.discard(result_of)
        elif open_calls:
            return (
                f"{where}: an assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id'. Without response: {', '.join(sorted(open_calls))}"
            )
        elif role == "user" and previous == "tool" and not user_after_tool:
            return f"{where}: a message with role 'user' cannot follow a message with role 'tool'."
        if role == "assistant":
            asked = message.get("tool_calls") or []
            fault = _fault_in_calls(asked)
            if fault:
                return f"{where}: {fault}"
            open_calls = {call["id"] for call in asked}
        if role not in ("system", "developer", "user", "assistant", "tool"):
            return f"{where}.role: {role!r} is not one of the roles."
        if role != "tool" and not message.get("content") and not message.get("tool_calls"):
            return f"{where}.content: expected a string, got an empty one or null."
        previous = role
    if open_calls:
        return (
            "an assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. Without response: {', '.join(sorted(open_calls))}"
        )
    return None


def _fault_in_calls(asked: list[dict[str, Any]]) -> str | None:
    ids = [call.get("id") for call in asked]
    if not all(ids) or len(set(ids)) != len(ids):
        return f"tool_calls need an id each, used once: {ids}"
    for call in asked:
        function = call.get("function") or {}
        if not function.get("name"):
            return f"tool call {call['id']} has no name."
        try:
            arguments = json.loads(function.get("arguments") or "")
        except (TypeError, ValueError):
            return f"tool call {call['id']}: arguments are no JSON."
        if not isinstance(arguments, dict):
            return f"tool call {call['id']}: arguments are no JSON object."
    return None
