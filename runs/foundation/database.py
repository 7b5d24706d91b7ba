"""From the event loop to the ORM: a thread pool for database work only.

Requests and graphs have other threads, so neither a slow view nor a tool that hangs delays the events.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import psycopg
from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.db.migrations.executor import MigrationExecutor

P = ParamSpec("P")
T = TypeVar("T")

# Errors of a database that does not work for the moment: two of the ORM, and those of the drivers, which
# checkpoints use without the ORM.
DATABASE_UNAVAILABLE = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlite3.OperationalError,
)


def is_held(error: BaseException) -> bool:
    """Whether the database works, and another transaction held a row for longer than we wait."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


# More threads would only wait: SQLite has one writer, and PostgreSQL a bounded pool of connections.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="database")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a database thread and return its result.

    If the caller is cancelled, the function and its transaction still run to their end.
    """
    call = partial(call_with_connection, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


def call_with_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in this thread with a usable connection. The connection is given back afterwards."""
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


def is_migrated() -> bool:
    """Whether all migrations are applied."""
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
