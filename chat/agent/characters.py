"""Replace the characters that databases and providers refuse, before a message enters an agent's state."""

from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Command

from runs.foundation.values import clean

# The fields that a model reads. Ids and numbers stay as they are, and artifacts belong to their tools.
_FIELDS = ("content", "name", "additional_kwargs", "tool_calls")


def replace_unstorable(value: Any) -> Any:
    """The same text, message, command, list or dict, with U+FFFD for each NUL and lone surrogate."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [replace_unstorable(item) for item in value]
    if isinstance(value, dict):
        return {replace_unstorable(key): replace_unstorable(item) for key, item in value.items()}
    if isinstance(value, BaseMessage):
        held = {name: getattr(value, name) for name in _FIELDS if hasattr(value, name)}
        return value.model_copy(update=replace_unstorable(held))
    if isinstance(value, Command):
        return replace(value, update=replace_unstorable(value.update))
    return value
