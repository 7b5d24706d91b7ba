"""Which worker, session and run a line of the log is about: set where work begins, read by a formatter.

A task inherits what was set where it was created; so do the threads of a graph's tools.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from uuid import UUID

_ids: ContextVar[Mapping[str, str]] = ContextVar("log_ids", default=MappingProxyType({}))


def bind(**ids: UUID | str) -> None:
    """From here on lines of this task are about these, besides what was said before."""
    _ids.set({**_ids.get(), **{name: str(value) for name, value in ids.items()}})


def ids() -> Mapping[str, str]:
    """What a line written here is about; may be empty."""
    return _ids.get()
