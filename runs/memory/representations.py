"""Messages of a checkpoint, or that a client brought along, as objects of the wire contract."""

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from runs.foundation.limits import TOOL_NAME_LIMIT
from runs.foundation.masking import masked
from runs.foundation.values import clean, text_of, to_json, truncate_to_fit
from runs.memory.normalise import engine_mark
from runs.states import Audience, Effect, ToolStatus
from runs.wire import contract


def represent(messages: Iterable[BaseMessage]) -> list[contract.Message]:
    """Those that are shown, with the results of their calls; of no run, and without a time."""
    shown: list[tuple[BaseMessage, dict[str, ToolMessage]]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            results = next((of for one, of in reversed(shown) if _calls(one, message.tool_call_id)), None)
            if results is not None:
                results.setdefault(message.tool_call_id, message)
        elif _is_shown(message):
            shown.append((message, {}))
    return [_represent(message, results) for message, results in shown]


def _calls(message: BaseMessage, call_id: str) -> bool:
    return isinstance(message, AIMessage) and any(call["id"] == call_id for call in message.tool_calls)


def _is_shown(message: BaseMessage) -> bool:
    if isinstance(message, AIMessage):
        return bool(message.tool_calls or text_of(message.content).strip())
    return isinstance(message, HumanMessage | SystemMessage)


def _represent(message: BaseMessage, results: dict[str, ToolMessage]) -> contract.Message:
    calls: Sequence[Any] = message.tool_calls if isinstance(message, AIMessage) else ()
    counted = message.usage_metadata if isinstance(message, AIMessage) else None
    return {
        "id": message.id,
        "run": None,
        "role": {"human": "user", "system": "system"}.get(message.type, "assistant"),
        "text": clean(text_of(message.content)),
        "status": "interrupted" if engine_mark(message) else "complete",
        "audience": Audience.ANSWER,
        "tool_calls": [_call(call, results.get(call["id"] or "")) for call in calls],
        "usage": {"input_tokens": counted["input_tokens"], "output_tokens": counted["output_tokens"]}
        if counted
        else None,
        "at": None,
    }


def _call(asked: Any, result: ToolMessage | None) -> contract.ToolCall:
    status, effect = _outcome(result)
    text = clean(text_of(result.content)) if result else None
    return {
        "id": asked["id"],
        "name": truncate_to_fit(asked["name"], TOOL_NAME_LIMIT),
        "args": to_json(asked["args"]),
        "status": status,
        "result": text if status == ToolStatus.COMPLETED else None,
        "error": masked(text) if text and status == ToolStatus.FAILED else None,
        "effect": effect,
        "duration_ms": None,
    }


def _outcome(result: ToolMessage | None) -> tuple[str, str]:
    """Status and effect of a call, by its result."""
    if result is None:
        return ToolStatus.CANCELLED, Effect.NONE
    if status := engine_mark(result):
        return status, Effect.UNKNOWN
    return (ToolStatus.FAILED if result.status == "error" else ToolStatus.COMPLETED), Effect.DONE
