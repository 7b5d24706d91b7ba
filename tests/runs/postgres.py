"""A PostgreSQL server for tests: ``from tests.runs.postgres import postgres`` makes the fixture known.

It starts when a test first asks for it, once for each test process; ``tests.services`` says where.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.services import postgresql_url


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
    with postgresql_url() as url:
        yield Postgres(url)
