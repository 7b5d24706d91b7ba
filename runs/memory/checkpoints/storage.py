"""The interface of a database that keeps checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver

from runs.memory.checkpoints.fence import Fence

if TYPE_CHECKING:
    from runs.memory.checkpoints.saver import FencedSaver

T = TypeVar("T")
Saver: TypeAlias = BaseCheckpointSaver[str]
Operation: TypeAlias = Callable[[Saver], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of an execution to write: its run, and the claim number it has of it."""

    run_id: UUID
    number: int


class Storage(ABC):
    """One database with checkpoints, opened on one event loop.

    ``run_shielded`` calls ``read`` and ``write``, so no cancel cuts them short.
    """

    fenced_class: "ClassVar[type[FencedSaver]]"  # can do what LangGraph's saver for this database can

    def __init__(self, versions: Saver) -> None:
        self.versions = versions  # LangGraph's saver; used for its serialiser and its version numbers
        self.fence = Fence()  # of all operations; closed when the process leaves

    @abstractmethod
    async def read(self, operation: Operation[T]) -> T:
        """Run an operation that only reads; its result."""

    @abstractmethod
    async def write(self, operation: Operation[T], claim: Claim | None = None) -> T:
        """Run an operation atomically; its result.

        Raises Fenced and changes nothing if the database can see that ``claim`` does not hold its run any
        more.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, when nothing uses them any more."""
