"""The database as others see it, and the pools of connections to it."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, LiteralString

import psycopg
from django.db import connection
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from runs.memory.checkpoints.postgres import PostgresStorage
from tests.runs.harness import Harness


class Server:
    """The database as an outsider sees it, who is connected to another one of the same server."""

    def __init__(self, outside: psycopg.Connection, name: str) -> None:
        self._outside = outside
        self.name = name

    def ask(self, query: LiteralString, *parameters: object) -> list[Any]:
        return self._outside.execute(query, parameters).fetchall()

    def sessions(self, state: str = "%") -> int:
        """How many sessions there are, in a state."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND state LIKE %s"
        return self.ask(query, self.name, state)[0][0]

    def end_sessions(self) -> int:
        """End every session; how many there were."""
        query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        return len(self.ask(query, self.name))

    def lock_is_waited_for(self) -> bool:
        """Whether a session waits for a lock that another one has."""
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        return bool(self.ask(query, self.name))

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody is connected any more, and nobody can connect."""
        self._let_connect(False)
        try:
            self.end_sessions()
            yield
        finally:
            self._let_connect(True)

    @contextmanager
    def reading_only(self) -> Iterator[None]:
        """Nothing can be written."""
        name = sql.Identifier(self.name)
        self._outside.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
        )
        try:
            self.end_sessions()
            yield
        finally:
            self._outside.execute(
                sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name)
            )
            self.end_sessions()

    def _let_connect(self, allowed: bool) -> None:
        statement = "ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}"
        self._outside.execute(sql.SQL(statement).format(sql.Identifier(self.name), sql.Literal(str(allowed))))

    @contextmanager
    def holding(self, table: str, row_id: str) -> Iterator[None]:
        """Another program holds a row in an open transaction."""
        address = psycopg.conninfo.make_conninfo(os.environ["DATABASE_URL"], dbname=self.name)
        with closing(psycopg.connect(address)) as other:
            query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(table))
            other.execute(query, (row_id,))
            yield


def pool_of_django() -> ConnectionPool:
    return connection.pool  # type: ignore[attr-defined] # of PostgreSQL alone


def pool_of_checkpoints(harness: Harness) -> AsyncConnectionPool[Any]:
    storage = harness.engine.checkpoints._storage
    assert isinstance(storage, PostgresStorage)
    return storage._pool
