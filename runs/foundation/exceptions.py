"""What can be said of an exception that anybody may have raised. Its own methods may raise, too."""

import traceback
from collections.abc import Iterator
from typing import Any

from runs.foundation.values import presentable

# In characters.
DETAILS_LIMIT = 2000
TRACEBACK_LIMIT = 20_000


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, what caused it, what caused that, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ if cause.__cause__ is not None else cause.__context__


def described(error: BaseException) -> str:
    """Types and texts of an exception and its causes, for operators: clean, masked and bounded."""
    return presentable("\ncaused by ".join(map(_line, causes(error))), DETAILS_LIMIT)


def traceback_of(error: BaseException) -> str:
    """Its traceback for the log: clean, masked and bounded."""
    return presentable("".join(traceback.format_exception(error)), TRACEBACK_LIMIT)


def text_of_exception(error: BaseException) -> str:
    """Its text as it is; empty if it has none that can be had."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - whatever it raises, SystemExit included, is no news of ours
        return ""


def attribute(error: BaseException, name: str) -> Any:
    """An attribute, or None if it cannot be had."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 - a property runs code of the graph, which may raise anything
        return None


def _line(error: BaseException) -> str:
    text = text_of_exception(error)
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    notes = attribute(error, "__notes__")  # LangGraph names the node in one
    if isinstance(notes, list):
        said += "".join(f"\n{note.strip()}" for note in notes if isinstance(note, str))
    if isinstance(error, BaseExceptionGroup):
        said += "".join(f"\n  {_line(one)}" for one in error.exceptions)
    return said
