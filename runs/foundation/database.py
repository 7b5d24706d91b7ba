"""The way from the event loop to the ORM: a pool of threads that does nothing else.

Separate from the threads of requests and of graphs, so that neither a slow view nor a hung tool can
hold up the writing of events.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import psycopg
from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.db.migrations.executor import MigrationExecutor

P = ParamSpec("P")
T = TypeVar("T")

# What says that the database cannot do its work for the moment: the first two of the ORM, the others of the
# drivers, which the checkpoints use without it.
DATABASE_UNAVAILABLE = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlite3.OperationalError,
)


def is_held(error: BaseException) -> bool:
    """Whether the database answers, and somebody holds a row for longer than we wait."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


# SQLite has one writer and PostgreSQL a bounded pool of connections: more threads would only wait.
_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="database")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a thread that may use the ORM, and return what it returns.

    If the caller is cancelled meanwhile, the function still runs to its end, and its transaction with it.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: call_with_connection(function, *args, **kwargs))


def call_with_connection(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` in this thread with a usable connection, and give the connection back after."""
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


def is_migrated() -> bool:
    """Whether the database has all migrations."""
    executor = MigrationExecutor(connection)
    return not executor.migration_plan(executor.loader.graph.leaf_nodes())
