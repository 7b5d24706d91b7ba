"""How the pages write numbers, times and tool calls."""

import json
import re
from dataclasses import dataclass
from typing import Any

from django import template

from chat.rendering import render_markdown
from runs.wire.encoding import pretty

register = template.Library()
register.filter("markdown", render_markdown)
register.filter("pretty", pretty)

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CALL_STATES = {
    "running": "Running",
    "completed": "Done",
    "failed": "Failed",
    "cancelled": "Stopped",
    "interrupted": "Interrupted",
}


@dataclass(frozen=True, slots=True)
class Settled:
    """A text on its way, cut where no more words can change how what is before them is rendered."""

    head: str  # whole paragraphs and the like
    tail: str  # what may still become anything

    @property
    def length(self) -> int:
        """Of the head, as JavaScript counts."""
        return len(self.head.encode("utf-16-le", "surrogatepass")) // 2


@register.filter
def settled(text: str) -> Settled:
    """Cut a streaming text behind its last blank line that is not inside a block of code."""
    cut = length = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        length += len(line)
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip(" `~\r\n"):
            fence = ""
        elif not fence and not line.strip() and line.endswith("\n"):
            cut = length
    return Settled(text[:cut], text[cut:])


@register.filter
def duration(milliseconds: int | None) -> str:
    """1234 becomes "1.2 s", 83000 "1 min 23 s"; nothing stays nothing."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


@register.filter
def grouped(number: int | None) -> str:
    """12345 becomes "12,345"; an unknown number stays nothing."""
    return "" if number is None else f"{number:,}"


@register.filter
def tokens(statistics: dict[str, Any]) -> str:
    """Tokens in and out together, "about" when a part of them is estimated; nothing when none is known."""
    known = [statistics[key] for key in ("input_tokens", "output_tokens") if statistics[key] is not None]
    if not known:
        return ""
    return f"{'about ' if statistics['tokens_estimated'] else ''}{sum(known):,} tokens"


@register.filter
def one_line(value: Any) -> str:
    """A tool's arguments on one line, cut to what a card's head can hold."""
    text = (
        ", ".join(f"{key}: {_compact(item)}" for key, item in value.items())
        if isinstance(value, dict)
        else _compact(value)
    )
    return text if len(text) <= 80 else text[:79] + "…"


@register.filter
def call_state(call: dict[str, Any]) -> str:
    """How far a tool call came, and what that says of its effect."""
    if call["effect"] == "unknown":
        return "May have finished"
    if call["effect"] == "none" and call["status"] in ("cancelled", "interrupted"):
        return "Not started"
    return _CALL_STATES[call["status"]]


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
