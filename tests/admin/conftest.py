from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client

from runs import operators
from runs.models import AuditEntry, Cancellation, Session
from tests.admin.rows import a_worker, running_run

if TYPE_CHECKING:
    from tests.fakes import ScriptedModel


@pytest.fixture(autouse=True)
def default_agent(serve: Callable[[Any], None]) -> None:
    """An agent that says nothing. It is named, so that LangGraph loads when a test runs it."""
    serve("tests.fakes:silent_graph")


@pytest.fixture
def model(serve: Callable[[Callable[[], Any]], None], tmp_path: Path) -> "Iterator[ScriptedModel]":
    """The model behind the default agent; its gates are opened at the end."""
    from tests.fakes import Marks, ScriptedModel, plain_graph, tools

    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """No figures of an earlier test."""
    cache.clear()


@pytest.fixture
def session(alice: User) -> Session:
    return Session.objects.create(owner=alice, agent="assistant")


@pytest.fixture
def console(transactional_db: None, olivia: User) -> Client:
    """Olivia's browser, logged in."""
    return logged_in(olivia)


@pytest.fixture
def staff(transactional_db: None) -> Callable[..., Client]:
    """``staff("view_run", ...)`` is the browser of somebody with just these permissions."""

    def hire(*permissions: str, name: str = "steve") -> Client:
        user = User.objects.create_user(name, password="x", is_staff=True)
        found = Permission.objects.filter(codename__in=permissions)
        assert {permission.codename for permission in found} == set(permissions)
        user.user_permissions.set(found)
        return logged_in(user)

    return hire


@pytest.fixture
def keys(transactional_db: None, alice: User, olivia: User) -> dict[str, UUID | int | None]:
    """A row of each model: ``{model: key}``."""
    run = running_run(alice, a_worker())
    operators.cancel(olivia, run.id, "why")
    return {
        "run": run.id,
        "session": run.session_id,
        "worker": run.worker_id,
        "cancellation": Cancellation.objects.get().id,
        "auditentry": AuditEntry.objects.get().id,
    }


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
