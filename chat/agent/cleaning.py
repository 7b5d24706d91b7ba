"""Messages free of the characters that databases and providers refuse, before they enter an agent's state."""

from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.types import Command

from runs.foundation.values import clean

# What is read by a model. Ids and figures stay as they are, and artifacts belong to their tools.
_FIELDS = ("content", "name", "additional_kwargs", "tool_calls")


def cleaned(value: Any) -> Any:
    """The text, message, command, or list or dict of these, with each NUL and lone surrogate as U+FFFD."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, BaseMessage):
        held = {name: getattr(value, name) for name in _FIELDS if hasattr(value, name)}
        return value.model_copy(update=cleaned(held))
    if isinstance(value, Command):
        return replace(value, update=cleaned(value.update))
    return value
