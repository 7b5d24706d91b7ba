"""Titles written by the model, for sessions whose title is still the user's first words."""

import asyncio
import logging

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage

from chat.agent.model import chat_model, is_demo

logger = logging.getLogger(__name__)

PROMPT = (
    "Write a title of three to six words for the conversation below, in its language. "
    "Answer with the title alone: no quotation marks, no markup, no full stop."
)
MAX_CHARACTERS = 60
MAX_EXCERPT = 2_000  # characters of each side that the model reads
TIMEOUT = 20.0  # seconds
_WRAPPING = " \t\"'`*_#“”„‘’«».:-–—"  # noqa: RUF001  what models put around a title


async def title_of_turn(user_text: str, answer_text: str) -> str | None:
    """A title by the configured model; None with the demo model, whose titles would say nothing."""
    if is_demo():
        return None
    return await generate_title(chat_model(), user_text, answer_text)


async def generate_title(model: BaseChatModel, user_text: str, answer_text: str) -> str | None:
    """A title of at most 60 characters on one line, or None when the model gives none in time."""
    conversation = f"User: {user_text[:MAX_EXCERPT]}\n\nAssistant: {answer_text[:MAX_EXCERPT]}"
    try:
        async with asyncio.timeout(TIMEOUT):
            answer = await model.ainvoke([SystemMessage(PROMPT), HumanMessage(conversation)])
    except Exception:
        # Whatever the provider raises: a title is a nicety, and the user's words are there already.
        logger.warning("The model gave no title.", exc_info=True)
        return None
    return _clean(str(answer.text))


def _clean(text: str) -> str | None:
    lines = (line.strip(_WRAPPING) for line in text.splitlines())
    line = next((line for line in lines if line), "")
    words = "".join(character if character.isprintable() else " " for character in line).split()
    title = " ".join(words)
    if len(title) > MAX_CHARACTERS:
        title = title[:MAX_CHARACTERS].rsplit(" ", 1)[0][: MAX_CHARACTERS - 2].rstrip(_WRAPPING) + " …"
    return title or None
