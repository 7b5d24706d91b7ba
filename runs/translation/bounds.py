"""Bounds what a tool gives to the graph. What is cut is not looked at, however long it is."""

from typing import Any

from django.conf import settings
from langchain_core.messages import ToolMessage
from langgraph.types import Command


def bounded(result: Any) -> Any:
    """What a ToolNode gets from a call, of RUNS_RESULT_LIMIT characters at most; the same object if it fits.

    The beginning and the end are kept, with a sentence between them. A block without text is left out whole.
    """
    if isinstance(result, ToolMessage):
        return _bounded_message(result)
    if isinstance(result, list):
        return _same_or([bounded(one) for one in result], result)
    if isinstance(result, Command) and isinstance(result.update, dict):
        update = {key: bounded(value) for key, value in result.update.items()}
        if any(update[key] is not value for key, value in result.update.items()):
            return Command(graph=result.graph, update=update, resume=result.resume, goto=result.goto)
    return result


def _bounded_message(message: ToolMessage) -> ToolMessage:
    content = _bounded_content(message.content)
    artifact = message.artifact
    if isinstance(artifact, str | bytes) and len(artifact) > settings.RUNS_RESULT_LIMIT:
        artifact = None
    if content is message.content and artifact is message.artifact:
        return message
    return message.model_copy(update={"content": content, "artifact": artifact})


def _bounded_content(content: Any) -> Any:
    limit = settings.RUNS_RESULT_LIMIT
    if isinstance(content, str):
        return _cut(content, limit)
    if sum(map(_length, content)) <= limit:
        return content
    left, kept = limit, []
    for block in content:
        length = _length(block)
        if length <= left:
            kept.append(block)
        elif isinstance(block, str):
            kept.append(_cut(block, left))
        elif isinstance(block.get("text"), str):
            kept.append({**block, "text": _cut(block["text"], left)})
        else:
            kind = block.get("type", "block")
            kept.append({"type": "text", "text": f"[left out: {kind}, {length:,} characters]"})
        left = max(left - length, 0)
    return kept


def _length(block: Any) -> int:
    """The characters of a block, those of what it holds included."""
    if isinstance(block, str | bytes):
        return len(block)
    if isinstance(block, dict):
        return sum(map(_length, block.values()))
    return sum(map(_length, block)) if isinstance(block, list) else 0


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 4, limit // 4
    said = f"[left out: {len(text) - limit:,} of {len(text):,} characters]"
    return f"{text[:head]}\n{said}\n{text[-tail:] if tail else ''}"


def _same_or(changed: list[Any], given: list[Any]) -> list[Any]:
    same = all(one is other for one, other in zip(changed, given, strict=True))
    return given if same else changed
