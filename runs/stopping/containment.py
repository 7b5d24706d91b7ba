"""Turns what would end the process into an ordinary failure of the code that raised it.

asyncio lets SystemExit and KeyboardInterrupt of a task end the event loop, and a GeneratorExit passes every
``except Exception``. So an argparse in a tool would take the whole server along. Python handles the real
signal SIGINT in the main thread's own code, so a KeyboardInterrupt inside a run is always the run's own.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

_ENDS_INTERPRETER = (SystemExit, KeyboardInterrupt, GeneratorExit)


class ExitRaised(RuntimeError):
    """A tool or step raised SystemExit, KeyboardInterrupt or GeneratorExit, which is its ``__cause__``."""

    def __init__(self, raised: BaseException) -> None:
        said = str(raised)
        super().__init__(f"It tried to exit: {type(raised).__name__}{f' ({said})' if said else ''}.")


def call(function: Callable[[], T]) -> T:
    """Call a function. Raises ExitRaised in place of what would end the process."""
    try:
        return function()
    except _ENDS_INTERPRETER as raised:
        raise ExitRaised(raised) from raised


class ContainedCoroutine(Coroutine[Any, Any, T]):
    """A coroutine that raises ExitRaised in place of what would end the process."""

    def __init__(self, inner: Coroutine[Any, Any, T]) -> None:
        self._inner = inner
        self.__name__ = getattr(inner, "__name__", type(inner).__name__)
        self.__qualname__ = getattr(inner, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except _ENDS_INTERPRETER as raised:
            raise ExitRaised(raised) from raised

    def throw(self, *raised: Any) -> Any:
        try:
            return self._inner.throw(*raised)
        except _ENDS_INTERPRETER as exit_raised:
            raise ExitRaised(exit_raised) from exit_raised

    def close(self) -> None:
        """End it early. The GeneratorExit that this throws is not its own."""
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()

    @property
    def cr_frame(self) -> Any:
        """Where it stands, for what prints the stack of a task."""
        return getattr(self._inner, "cr_frame", None)
