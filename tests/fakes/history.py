"""Is a history of LangChain messages sendable?"""

from collections.abc import Sequence

from langchain_core.messages import BaseMessage, convert_to_openai_messages

from tests.provider.script import Messages
from tests.provider.strict import fault_in


def openai_history(messages: Sequence[BaseMessage]) -> Messages:
    """The messages as a provider gets them."""
    history = convert_to_openai_messages(list(messages))
    assert isinstance(history, list)
    return history


def unsendable(messages: Sequence[BaseMessage], *, user_after_tool: bool = False) -> str | None:
    """Why a strict provider would refuse this history; None when it is well-formed.

    Checks calls that could not be parsed, too, which a provider's client would send as they are.
    """
    for message in messages:
        if getattr(message, "invalid_tool_calls", None):
            return f"message {message.id} carries calls that could not be parsed"
    return fault_in(openai_history(messages), user_after_tool=user_after_tool)
