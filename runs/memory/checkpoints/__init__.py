"""The LangGraph checkpoints: where they are kept, and the fence that keeps late writers out.

An execution writes through a ``FencedSaver``. Each of its writes is atomic, however the execution is
cancelled. It happens only while the execution owns its run. It leaves the shared connections clean for the
other runs.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from django.conf import settings
from django.db import connection

from runs import this_process
from runs.memory.checkpoints.fence import run_shielded

if TYPE_CHECKING:
    from runs.memory.checkpoints.saver import FencedSaver, ReadingSaver
    from runs.memory.checkpoints.storage import Storage

__all__ = ["Checkpoints", "process_checkpoints"]


class Checkpoints:
    """The checkpoints of this process, one object per event loop. A session's id is its thread id."""

    def __init__(self, storage: "Storage") -> None:
        self._storage = storage

    @classmethod
    async def open(cls) -> "Checkpoints":
        """Open what the settings name: the default database if it is PostgreSQL, else CHECKPOINT_PATH."""
        if connection.vendor == "postgresql":
            from runs.memory.checkpoints.postgres import PostgresStorage

            return cls(await PostgresStorage.open())
        from runs.memory.checkpoints.sqlite import SqliteStorage

        return cls(await SqliteStorage.open(settings.CHECKPOINT_PATH))

    async def close(self) -> None:
        """Await the operations in progress, then close the connections."""
        await self._storage.fence.close()
        await self._storage.close()

    def fenced(self, run_id: UUID, claim: int, turn: str) -> "FencedSaver":
        """A saver for the execution that holds the run ``run_id`` under the number ``claim``.

        ``turn`` names its turn: a run and those that resume it, one after the other, have the same one.
        """
        from runs.memory.checkpoints.storage import Claim

        return self._storage.fenced_class(self._storage, Claim(run_id, claim), turn)

    def reader(self) -> "ReadingSaver":
        """A saver that only reads."""
        from runs.memory.checkpoints.saver import ReadingSaver

        return ReadingSaver(self._storage)

    async def delete(self, thread_ids: Iterable[UUID]) -> None:
        """Delete all checkpoints of these sessions. Their executions must have ended or be fenced."""
        for thread_id in thread_ids:
            await run_shielded(partial(self._delete, str(thread_id)), self._storage.fence)

    async def _delete(self, thread_id: str) -> None:
        await self._storage.write(lambda saver: saver.adelete_thread(thread_id))


@asynccontextmanager
async def process_checkpoints() -> AsyncIterator[Checkpoints]:
    """The checkpoints of this process. A command, which has none, opens and closes them here."""
    if this_process.engine is not None:
        yield this_process.engine.checkpoints
        return
    opened = await Checkpoints.open()
    try:
        yield opened
    finally:
        await opened.close()
