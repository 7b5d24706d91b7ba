"""Shared set-up: a data directory of its own for each test process, and people who exist in every test.

The tests run in two modes: on SQLite and in memory, and, under ``python -m tests.services``, on PostgreSQL
and Redis. The second mode collects what asks for a database, since all else would be the same there.
"""

import asyncio
import atexit
import os
import shutil
import tempfile
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

_data = tempfile.mkdtemp(prefix="turnkeeper-tests-")
atexit.register(shutil.rmtree, _data, ignore_errors=True)
os.environ["DATA_DIR"] = _data
os.environ.setdefault("SECRET_KEY", "only-for-tests-and-long-enough-to-be-taken-for-a-real-one")
os.environ["ALLOWED_HOSTS"] = "127.0.0.1,localhost,testserver"
ON_SERVICES = bool(os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"))
# Test processes that run side by side have a database each, in Redis as in PostgreSQL.
_process = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
if ON_SERVICES:  # whoever started us may have put its own there
    _redis_url = f"{os.environ['REDIS_URL'].partition('?')[0]}?db={_process.removeprefix('gw')}"
    os.environ["REDIS_URL"] = _redis_url

import django  # noqa: E402

django.setup()

from django.conf import settings as project_settings  # noqa: E402

# The real hasher is slow on purpose; here it would only make each test wait.
project_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if ON_SERVICES:
    # The settings were read before this file was. What is published in Redis is heard in all its databases.
    project_settings.REDIS_URL = _redis_url
    project_settings.CHANNEL_LAYERS["default"]["CONFIG"] |= {"hosts": [_redis_url], "prefix": _process}
    # A count that Redis does not take in time is not made; on a busy machine a test would miss it.
    project_settings.CACHES["default"] |= {
        "LOCATION": _redis_url,
        "OPTIONS": {"socket_timeout": 20, "socket_connect_timeout": 20},
    }

import pytest  # noqa: E402
from asgiref.sync import SyncToAsync  # noqa: E402
from django.core.cache import cache  # noqa: E402
from django.db import connection, connections  # noqa: E402

from runs import agents  # noqa: E402

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from runs.worker.supervisor import Supervisor

# Their tests start processes of the product and wait for them.
LONG = ("processes", "e2e", "docs", "benchmarks", "server")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what adds nothing in this mode, and begin with what takes longest: side by side, a long file
    that comes last is waited for.
    """
    left_out = [item for item in items if not _belongs(item)]
    if left_out:
        items[:] = [item for item in items if _belongs(item)]
        config.hook.pytest_deselected(items=left_out)
    items.sort(key=lambda item: item.path.parent.name not in LONG)


def _belongs(item: pytest.Item) -> bool:
    if item.get_closest_marker("faults") and "FAULT_SECONDS" not in os.environ:
        return False
    if not ON_SERVICES:
        return not item.get_closest_marker("services")
    if item.get_closest_marker("sqlite"):
        return False
    asks = {"db", "transactional_db"} & set(getattr(item, "fixturenames", ()))
    return bool(asks or item.get_closest_marker("django_db") or item.get_closest_marker("services"))


@pytest.fixture(scope="session", autouse=ON_SERVICES)
def _few_rows() -> Iterator[None]:
    """Between tests, delete the few rows there are: on PostgreSQL it takes a tenth of the time of a flush,
    which truncates all tables and makes anew what migrations make. Here that stays.
    """
    made = ("django_content_type", "auth_permission")

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        return [f"DELETE FROM {self.quote_name(table)}" for table in tables if table not in made]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("django.db.backends.postgresql.operations.DatabaseOperations.sql_flush", sql_flush)
        patched.setattr("django.core.management.commands.flush.emit_post_migrate_signal", lambda *_: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _loops_end_their_connections() -> Iterator[None]:
    """What is connected on a loop ends with it. A client of HTTP keeps idle connections on purpose, and in a
    test it outlives its loop; the garbage collector would find their sockets during some later test.
    """
    close = BaseSelectorEventLoop.close

    def end_and_close(loop: Any) -> None:
        if not loop.is_closed() and asyncio._get_running_loop() is None:
            for transport in list(loop._transports.values()):
                transport.abort()
            loop.run_until_complete(asyncio.sleep(0))  # they are gone in its next round
        close(loop)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseSelectorEventLoop, "close", end_and_close)
        yield


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """At the end, give back the connection of the thread in which synchronous views ran: the end of a
    request does that, but Django's test client keeps it from doing so. What is connected all the same, a
    thread that a test gave up on, say, does not keep the database from being deleted.
    """
    yield
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()
    if ON_SERVICES:
        creation: Any = connection.creation
        creation._destroy_test_db = _drop_with_its_sessions


def _drop_with_its_sessions(test_database_name: str, verbosity: int) -> None:
    """As Django does it, but sessions that are left are ended and not waited for."""
    on_postgresql: Any = connection
    on_postgresql.close_pool()
    with on_postgresql.creation._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE {connection.ops.quote_name(test_database_name)} WITH (FORCE)")


@pytest.fixture(autouse=True)
def _nothing_cached() -> None:
    """No test sees what another one left in the cache; in Redis, in the whole database."""
    cache.clear()


@pytest.fixture
def alice(db: None, django_user_model: "type[User]") -> "User":
    """Owns what the test is about."""
    return django_user_model.objects.create_user("alice", password="alice-password")


@pytest.fixture
def bob(db: None, django_user_model: "type[User]") -> "User":
    """Has an account and owns nothing of it."""
    return django_user_model.objects.create_user("bob", password="bob-password")


@pytest.fixture
def olivia(db: None, django_user_model: "type[User]") -> "User":
    """Operates the service."""
    return django_user_model.objects.create_superuser("olivia", password="olivia-password")


@pytest.fixture
def serve(settings: Any) -> Iterator[Callable[..., None]]:
    """Configure agents: ``serve(build)`` or ``serve(name=build)``; a build returns an uncompiled graph."""

    def configure(build: agents.BuildGraph | str | None = None, **others: agents.BuildGraph | str) -> None:
        agents.forget()
        settings.AGENTS = ({"assistant": build} if build else {}) | others

    yield configure
    agents.forget()


@pytest.fixture
async def engine(transactional_db: None) -> "AsyncIterator[Supervisor]":
    """The engine of this process, running on the test's loop."""
    from runs.worker.supervisor import Supervisor

    supervisor = await Supervisor.start()
    yield supervisor
    await supervisor.leave(5)
