"""Checkpoints in SQLite and in PostgreSQL."""

import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connections
from pytest_django import DjangoDbBlocker

from runs.memory.checkpoints.postgres import PostgresStorage, create_tables
from runs.memory.checkpoints.sqlite import SqliteStorage
from runs.models import Run, Session, Worker
from runs.states import RunStatus
from tests.runs.memory.stores import ALIAS, LIMIT, Backend, Store
from tests.runs.postgres import Postgres, django_database, postgres  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def database(postgres: Postgres, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:  # noqa: F811
    """A PostgreSQL database with the tables of the runs and those of LangGraph; its address."""
    user_model = get_user_model()
    with postgres.database() as address, django_db_blocker.unblock():
        entry = {"default": connections.settings["default"], ALIAS: django_database(address)}
        connections.settings[ALIAS] = connections.configure_settings(entry)[ALIAS]
        with connections[ALIAS].schema_editor() as editor:
            for model in (ContentType, Permission, Group, user_model, Session, Worker, Run):
                editor.create_model(model)
        create_tables(ALIAS)
        create_tables(ALIAS)  # as every migrate does
        user_model.objects.using(ALIAS).create(username="alice")
        yield address
        connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


@pytest.fixture
def sqlite_backend(tmp_path: Path) -> Backend:
    return Backend("sqlite", lambda: SqliteStorage.open(tmp_path / "checkpoints.sqlite3"), uuid.uuid4)


@pytest.fixture
def postgresql_backend(database: str) -> Iterator[Backend]:
    def new_run() -> uuid.UUID:
        owner = get_user_model().objects.using(ALIAS).get()
        session = Session.objects.using(ALIAS).create(owner=owner, agent="assistant")
        run = Run.objects.using(ALIAS).create(
            session=session, queue_place=1, position=1, status=RunStatus.RUNNING, claim=1, message_id="m"
        )
        connections[ALIAS].close()
        return run.id

    # Django refuses its ORM on an event loop.
    with ThreadPoolExecutor(1) as threads:
        yield Backend(
            "postgresql",
            lambda: PostgresStorage.open(ALIAS),
            lambda: threads.submit(new_run).result(LIMIT),
            database,
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each of the two in turn."""
    return request.getfixturevalue(f"{request.param}_backend")


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    store = await backend.open()
    yield store
    await store.checkpoints.close()


@pytest.fixture
async def sqlite(sqlite_backend: Backend) -> AsyncIterator[Store]:
    store = await sqlite_backend.open()
    yield store
    await store.checkpoints.close()


@pytest.fixture
async def shared(postgresql_backend: Backend) -> AsyncIterator[Store]:
    store = await postgresql_backend.open()
    yield store
    await store.checkpoints.close()
