"""The worker, session and run of a log record: bound where work begins, read by a formatter.

Tasks and the threads of a graph's tools inherit what was bound where they were created.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from uuid import UUID

_ids: ContextVar[Mapping[str, str]] = ContextVar("log_ids", default=MappingProxyType({}))


def bind(**ids: UUID | str) -> None:
    """Add these ids to the log records of this task from now on."""
    _ids.set({**_ids.get(), **{name: str(value) for name, value in ids.items()}})


def ids() -> Mapping[str, str]:
    """The ids of a log record that is written here; may be empty."""
    return _ids.get()
