"""The database's server, and a harness on it."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from asgiref.sync import SyncToAsync
from django.db import connection, connections

from tests.runs.harness import Harness, open_harness
from tests.runs.postgresql.server import Server

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@pytest.fixture
def server(transactional_db: None, alice: "User") -> Iterator[Server]:
    # The connections that no pool looks after: of the test's own thread, and of that of the ORM's coroutines.
    connection.close()
    SyncToAsync.single_thread_executor.submit(connections.close_all).result()
    address = os.environ["DATABASE_URL"]
    with closing(psycopg.connect(address, autocommit=True)) as outside:
        yield Server(outside, connection.settings_dict["NAME"])


@pytest.fixture
async def harness(
    server: Server, engine: Any, alice: "User", serve: Callable[..., None], tmp_path: Path
) -> AsyncIterator[Harness]:
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened
