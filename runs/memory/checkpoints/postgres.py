"""Checkpoints in the default database, when that is PostgreSQL."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from runs.errors import Fenced
from runs.memory.checkpoints.fence import run_shielded
from runs.memory.checkpoints.saver import FencedSaver
from runs.memory.checkpoints.storage import Claim, Operation, Storage
from runs.models import Run
from runs.states import RunStatus

T = TypeVar("T")
Connection: TypeAlias = AsyncConnection[DictRow]

POOL_SIZE = 8
# Seconds that an operation waits for a connection while the database is away or all are in use.
POOL_TIMEOUT = 10.0
# Seconds after which an attempt to connect gives up, so that the next operation tries again at once.
RECONNECT_TIMEOUT = 5.0

# Allows event batches at the same time (FOR NO KEY UPDATE), and waits for a change of status (FOR UPDATE).
LOCK_CLAIMED_RUN = (
    f"SELECT 1 FROM {Run._meta.db_table} WHERE id = %s AND claim = %s AND status = %s FOR KEY SHARE"  # noqa: S608
)


class FencedPostgresSaver(FencedSaver):
    """A FencedSaver that can prune, as LangGraph's own saver for PostgreSQL can."""

    _storage: "PostgresStorage"

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await run_shielded(
            lambda: self._storage.prune(thread_ids, strategy, self._claim), self._fence, self._storage.fence
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._from_thread(self.aprune(thread_ids, strategy=strategy))


class PostgresStorage(Storage):
    """One shared pool; each operation has its own connection, so executions do not wait for each other.

    A write and the check of its run are one transaction. An operation whose connection breaks is repeated
    once on another one. All of them may be repeated: reads, LangGraph's upserts and the check of the run.
    """

    fenced_class = FencedPostgresSaver

    def __init__(self, pool: AsyncConnectionPool[Connection]) -> None:
        super().__init__(versions=AsyncPostgresSaver(pool))
        self._pool = pool

    @classmethod
    async def open(cls, using: str = DEFAULT_DB_ALIAS) -> "PostgresStorage":
        """Connect to a database of the settings. Raises psycopg_pool.PoolTimeout if it does not answer."""

        async def check(connection: Connection) -> None:
            """Renew all connections when one is dead: the pool would wait longer from one to the next."""
            try:
                await pool.check_connection(connection)
            except psycopg.OperationalError:
                await pool.drain()
                raise

        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            kwargs={**_parameters(using), "autocommit": True, "row_factory": dict_row},
            min_size=1,
            max_size=POOL_SIZE,
            timeout=POOL_TIMEOUT,
            check=check,
            reconnect_timeout=RECONNECT_TIMEOUT,
            max_idle=60,
            name="checkpoints",
            open=False,
        )
        try:
            await pool.open(wait=True, timeout=POOL_TIMEOUT)
        except BaseException:
            await pool.close()
            raise
        return cls(pool)

    async def read(self, operation: Operation[T]) -> T:
        async def read() -> T:
            async with self._pool.connection() as connection:
                return await operation(AsyncPostgresSaver(connection))

        return await _retry_if_broken(read)

    async def write(self, operation: Operation[T], claim: Claim | None = None) -> T:
        async def write() -> T:
            async with self._pool.connection() as connection, connection.transaction():
                result = await operation(AsyncPostgresSaver(connection))
                # Last, so that the run's row is not locked while the values are being serialised.
                if claim is not None:
                    await _lock_claimed_run(connection, claim)
                return result

        return await _retry_if_broken(write)

    async def prune(self, thread_ids: Sequence[str], strategy: str, claim: Claim) -> None:
        """LangGraph's prune, while the run is locked: it makes its own transactions."""
        async with self._pool.connection() as connection, connection.transaction():
            await _lock_claimed_run(connection, claim)
            await AsyncPostgresSaver(self._pool).aprune(thread_ids, strategy=strategy)

    async def close(self) -> None:
        await self._pool.close()


def create_tables(using: str = DEFAULT_DB_ALIAS) -> None:
    """Make LangGraph's tables, or bring them up to date."""
    with psycopg.connect(**_parameters(using), autocommit=True, row_factory=dict_row) as connection:
        PostgresSaver(connection).setup()


def _parameters(using: str) -> dict[str, Any]:
    """The connection parameters of Django for this database, as psycopg takes them."""
    parameters = connections[using].get_connection_params()
    # LangGraph's SQL does not work with Django's cursors and adapters.
    del parameters["cursor_factory"], parameters["context"]
    return parameters


async def _lock_claimed_run(connection: Connection, claim: Claim) -> None:
    """Keep the run's status until this transaction ends. Raises Fenced if it is not running as claimed."""
    cursor = await connection.execute(LOCK_CLAIMED_RUN, (claim.run_id, claim.number, RunStatus.RUNNING.value))
    if await cursor.fetchone() is None:
        raise Fenced


async def _retry_if_broken(operation: Callable[[], Awaitable[T]]) -> T:
    try:
        return await operation()
    except PoolTimeout:
        raise  # it has waited long enough
    except psycopg.OperationalError:
        return await operation()
