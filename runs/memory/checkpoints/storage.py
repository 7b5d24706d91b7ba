"""What a database has to offer for checkpoints to be kept in it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver

from runs.memory.checkpoints.gate import Gate

if TYPE_CHECKING:
    from runs.memory.checkpoints.saver import FencedSaver

T = TypeVar("T")
Saver: TypeAlias = BaseCheckpointSaver[str]
Operation: TypeAlias = Callable[[Saver], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True)
class Claim:
    """What entitles an execution to write: its run, and the number under which it claimed it."""

    run_id: UUID
    number: int


class Storage(ABC):
    """One database with checkpoints, opened on one event loop.

    Only ever called in the tasks that ``whole`` makes, so neither method is cancelled half-way.
    """

    fenced_class: "ClassVar[type[FencedSaver]]"  # has the capabilities of LangGraph's own saver, no more

    def __init__(self) -> None:
        self.gate = Gate()  # everything passes it; closed when the process leaves

    @property
    @abstractmethod
    def versions(self) -> Saver:
        """A saver that knows how this database numbers versions and how values are serialised."""

    @abstractmethod
    async def read(self, operation: Operation[T]) -> T:
        """The result of an operation that only reads."""

    @abstractmethod
    async def write(self, operation: Operation[T], claim: Claim | None = None) -> T:
        """The result of an operation that happens wholly or not at all.

        Raises Fenced, and changes nothing, if ``claim`` does not hold its run any more and the database
        can tell.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, when nothing uses them any more."""
