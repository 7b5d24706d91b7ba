"""Lets subgraphs run that were compiled with ``checkpointer=False``.

With ``durability="sync"`` LangGraph waits at each step for the checkpoint that it has just written. The loop
of such a subgraph writes none, and has nothing that could be waited for: its turn failed.
"""

from collections.abc import Iterator

from langgraph.pregel._loop import AsyncPregelLoop, SyncPregelLoop


class _NothingToWaitFor:
    """Stands in for the checkpoint that was never written."""

    def __await__(self) -> Iterator[None]:
        return iter(())

    def result(self) -> None:
        """As of a future that is done."""


def allow() -> None:
    """Give the loops of LangGraph something to wait for. Doing it again is harmless."""
    for loop in (AsyncPregelLoop, SyncPregelLoop):
        loop._put_checkpoint_fut = _NothingToWaitFor()  # type: ignore[assignment]
