"""How JSON and times are written: in the database and on the wire alike, and JSON on pages."""

import json
import re
from datetime import datetime
from typing import Any
from uuid import UUID

# Further characters that some programs take for the end of a line. JSON does not escape them.
_line_ends = re.compile("[\x85\u2028\u2029]")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(data: Any) -> str:
    """JSON on one line, as it is stored and sent."""
    text = _encode(data)
    return _line_ends.sub(lambda found: f"\\u{ord(found[0]):04x}", text) if _line_ends.search(text) else text


def pretty(value: Any) -> str:
    """A value as indented JSON, for reading; text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def event(run_id: UUID, seq: int, type: str, data: str, at: datetime) -> str:
    """The Event as JSON, around data that is JSON already."""
    return f'{{"run":"{run_id}","seq":{seq},"type":"{type}","data":{data},"at":"{timestamp(at)}"}}'


def timestamp(at: datetime) -> str:
    """ISO 8601 in UTC."""
    return at.isoformat().replace("+00:00", "Z")
