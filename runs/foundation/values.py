"""Values of models, tools and graphs made fit for the log: clean text, JSON types, bounded size.

PostgreSQL cannot store NUL, and a lone surrogate cannot be encoded. Both become U+FFFD.
"""

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from runs.foundation.limits import ID_LIMIT, VALUE_LIMIT
from runs.foundation.masking import masked

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

_DEPTH_LIMIT = 20
_BORDER = 1000  # characters beside a cut that may belong to a secret
_NAME_LIMIT = 200  # of an entry of an object
# Behind a long text there is still room for names, numbers and short texts: the form of a value stays.
_ROOM_BEHIND = 10_000
_SHORT = 200
_NUMBER_BITS = 63  # more cannot be kept in a checkpoint

_unsafe = re.compile("[\x00\ud800-\udfff]")
# At the end of a text, or in the place of a value or a name. See ``was_cut``.
_mark = re.compile(
    r"\[(cut(: (\d+ more (characters|items)|nested too deeply))?|\d+ bytes|a number of \d+ bits)\]\Z"
)


def clean(text: str) -> str:
    """``text`` without NUL and lone surrogates; the two halves of a pair become the character they mean."""
    if not _unsafe.search(text):
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\x00", "\ufffd")


class CleanStream:
    """``clean`` for a text that arrives in pieces: a surrogate pair may be split between two of them."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The clean text that is known after this piece; may be empty."""
        if not self._held and not _unsafe.search(piece):
            return piece
        text = self._held + piece
        self._held = ""
        if "\ud800" <= text[-1:] <= "\udbff":  # the first half of a pair: the second may be on its way
            text, self._held = text[:-1], text[-1]
        return clean(text)

    def end(self) -> str:
        """The clean form of what was held back, when no other piece will come."""
        held, self._held = self._held, ""
        return clean(held)


def truncate(text: str, limit: int = VALUE_LIMIT) -> str:
    """Clean text of at most ``limit`` characters. If it was cut, a mark is added behind them."""
    if len(text) <= limit:
        return clean(text)
    return f"{clean(text[:limit])}\n[cut: {len(text) - limit} more characters]"


def truncate_to_fit(text: str, limit: int) -> str:
    """Clean text of at most ``limit`` characters, the mark of a cut included: it fits into a column."""
    if len(text) <= limit:
        return clean(text)
    mark = f" [cut: {len(text)} characters]"
    return clean(text[: limit - len(mark)]) + mark


def presentable(text: str, limit: int) -> str:
    """``text`` clean and masked, in ``limit`` characters at most: its beginning and its end."""
    mark = f" [cut: {len(text):,} characters] "
    if len(text) <= 3 * limit + 2 * _BORDER:
        return _without_middle(masked(clean(text)), limit, mark)
    # Of very long text only what may be shown is looked at. A secret that was cut in two is not known as one,
    # so what borders on the cut is left out.
    begin = masked(clean(text[: 2 * limit + _BORDER]))[:-_BORDER]
    end = masked(clean(text[-limit - _BORDER :]))[_BORDER:]
    return _without_middle(f"{begin}{mark}{end}", limit, mark)


def _without_middle(text: str, limit: int, mark: str) -> str:
    if len(text) <= limit:
        return text
    left = limit - len(mark)
    return f"{text[: left - left // 4]}{mark}{text[-(left // 4) :]}"


def lookup_key(given: str) -> str:
    """The id itself, or if it is longer than ID_LIMIT, its beginning and its digest in ID_LIMIT characters.

    Providers choose the ids of calls and messages, and some have hundreds of characters.
    """
    whole = clean(given)
    if len(whole) <= ID_LIMIT:
        return whole
    digest = sha256(whole.encode()).hexdigest()
    return f"{whole[: ID_LIMIT - len(digest) - 1]}:{digest}"


def text_of(content: Any) -> str:
    """The text of a message's content: its text blocks, without reasoning, tool calls and pictures."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "".join(_block_text(block) for block in content)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") in ("text", "output_text"):
        text = block.get("text")
        return text if isinstance(text, str) else ""
    return ""


def result_text(output: Any) -> str:
    """A tool's output as one bounded text.

    A string stays as it is. Of content blocks, texts are taken and others are named, such as ``[image]``.
    Everything else is written as JSON.
    """
    if isinstance(output, str):
        return truncate(output)
    if isinstance(output, list) and output and all(_is_block(item) for item in output):
        return truncate("\n".join(_block_text(item) or f"[{item['type']}]" for item in output))
    return truncate(json.dumps(to_json(output), ensure_ascii=False))


def _is_block(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, dict) and isinstance(item.get("type"), str))


def to_json(value: Any, limit: int = VALUE_LIMIT) -> Any:
    """``value`` in the types of JSON, of roughly ``limit`` characters at most, with a mark at each cut."""
    return _Conversion(limit).convert(value, 0)


def was_cut(value: Any) -> bool:
    """Whether JSON that ``to_json`` made lacks something, by its marks. A text may end like one by chance."""
    if isinstance(value, str):
        return _mark.search(value) is not None
    if isinstance(value, dict):
        return any(was_cut(name) or was_cut(item) for name, item in value.items())
    return isinstance(value, list) and any(map(was_cut, value))


class _Conversion:
    """One conversion to JSON types, and how many characters it may still give."""

    def __init__(self, limit: int) -> None:
        self._left = limit + _ROOM_BEHIND

    def convert(self, value: Any, depth: int) -> Any:
        self._left -= 4  # brackets, commas, small numbers
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum):
            return self.convert(value.value, depth)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            bits = value.bit_length()
            return int(value) if bits <= _NUMBER_BITS else f"[a number of {bits} bits]"
        if isinstance(value, float):
            # PostgreSQL gives a large one back as an integer, and JSON has no infinity and no NaN.
            return float(value) if abs(value) < 2**_NUMBER_BITS else str(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"[{len(value)} bytes]"
        if isinstance(value, UUID | Decimal | date | time):
            return self._text(str(value))
        if depth >= _DEPTH_LIMIT:
            return "[cut: nested too deeply]"
        return self._compound(value, depth + 1)

    def _compound(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, Sequence | Set):
            return self._items(value, depth)
        # Imported here, since commands that only clean texts should not load LangChain.
        from langchain_core.messages import BaseMessage
        from pydantic import BaseModel

        if isinstance(value, BaseMessage):
            return self._mapping(_message_fields(value), depth)
        if isinstance(value, BaseModel):
            names = list(type(value).model_fields)
            return self._mapping({name: getattr(value, name, None) for name in names}, depth)
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value)]
            return self._mapping({name: getattr(value, name, None) for name in names}, depth)
        return self._text(_words(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for number, (key, item) in enumerate(value.items()):
            if self._left <= 0:
                result["[cut]"] = f"{len(value) - number} more entries"
                break
            name = truncate(_words(key), _NAME_LIMIT)
            self._left -= len(name)
            result[name] = self.convert(item, depth)
        return result

    def _items(self, value: Sequence[Any] | Set[Any], depth: int) -> list[Any]:
        result: list[Any] = []
        for number, item in enumerate(value):
            if self._left <= 0:
                result.append(f"[cut: {len(value) - number} more items]")
                break
            result.append(self.convert(item, depth))
        return result

    def _text(self, text: str) -> str:
        room = self._left if len(text) <= _SHORT else self._left - _ROOM_BEHIND
        text = truncate(text, max(room, 0))
        self._left -= len(text)
        return text


def _words(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - str() runs code of the graph, which may raise anything
        return f"[{type(value).__name__}]"


def _message_fields(message: "BaseMessage") -> dict[str, Any]:
    named = {"type": message.type, "id": message.id, "name": message.name, "content": message.content}
    for name in ("tool_calls", "tool_call_id", "status"):
        if value := getattr(message, name, None):
            named[name] = value
    if message.type == "tool":  # it may quote an error, which may hold anything
        content = message.content
        named["content"] = (
            _masked(content) if isinstance(content, str) else [_masked_block(block) for block in content]
        )
    return {name: value for name, value in named.items() if value is not None}


def _masked(text: str) -> str:
    return masked(truncate(text))  # all of a very long text would take seconds


def _masked_block(block: Any) -> Any:
    if isinstance(block, str):
        return _masked(block)
    text = block.get("text")
    return {**block, "text": _masked(text)} if isinstance(text, str) else block
