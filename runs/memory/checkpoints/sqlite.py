"""Checkpoints in a SQLite file of their own, on one machine."""

import asyncio
import sqlite3
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from runs.memory.checkpoints.saver import FencedSaver
from runs.memory.checkpoints.storage import Claim, Operation, Storage

T = TypeVar("T")

# Seconds that a statement waits while another process (a backup, a command) holds the file.
BUSY_TIMEOUT = 10.0


class SqliteStorage(Storage):
    """Two connections: one writes, one statement after the other, and one reads. Neither waits for the other
    (WAL).

    The claim is not checked: the runs are in another file, which no transaction here can include. One
    process owns both files, so the fence of each ``FencedSaver`` is enough.
    """

    fenced_class = FencedSaver

    def __init__(
        self, writer: AsyncSqliteSaver, reader: AsyncSqliteSaver, connections: AsyncExitStack
    ) -> None:
        super().__init__(versions=reader)
        self._writer = writer
        self._reader = reader
        self._connections = connections
        # LangGraph releases its own lock before a failed write is rolled back. A write that began in between
        # would be rolled back, too.
        self._writing = asyncio.Lock()

    @classmethod
    async def open(cls, path: str | Path) -> "SqliteStorage":
        """Open the file. It and its tables are created when missing."""
        async with AsyncExitStack() as connections:
            writer, reader = [
                AsyncSqliteSaver(
                    await connections.enter_async_context(aiosqlite.connect(path, timeout=BUSY_TIMEOUT))
                )
                for _ in range(2)
            ]
            for saver in (writer, reader):
                await _set_up(saver)
                await saver.conn.execute("PRAGMA synchronous=NORMAL")
            await reader.conn.execute("PRAGMA query_only=ON")
            return cls(writer, reader, connections.pop_all())

    async def read(self, operation: Operation[T]) -> T:
        return await operation(self._reader)

    async def write(self, operation: Operation[T], claim: Claim | None = None) -> T:
        async with self._writing:
            try:
                return await operation(self._writer)
            except BaseException:
                # It may have failed between its statement and its commit. All runs share the connection, so
                # their next writes would join the transaction that is still open.
                await self._writer.conn.rollback()
                raise

    async def close(self) -> None:
        await self._connections.aclose()


async def _set_up(saver: AsyncSqliteSaver) -> None:
    """Make the tables and set the journal mode to WAL.

    When two processes switch the same new file at once, SQLite fails without waiting, so it is tried again.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            return await saver.setup()
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the low byte is the primary code
            if not busy or time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)
