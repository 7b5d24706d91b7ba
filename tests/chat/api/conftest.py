from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from tests.chat.api.programs import Program, open_session
from tests.fakes import Hold, Marks, Round, ScriptedModel, plain_graph, text, tools
from tests.provider import Gate

SCHEMATHESIS = "schemathesis.pytest.plugin"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Schemathesis collects what its ``parametrize`` makes; it takes seconds to load."""
    if module_path.name == "test_schema.py" and not parent.config.pluginmanager.has_plugin(SCHEMATHESIS):
        parent.config.pluginmanager.import_plugin(SCHEMATHESIS)


@pytest.fixture
def as_alice(transactional_db: None, alice: User) -> Program:
    """A program of alice's."""
    return Program(alice)


@pytest.fixture
def as_bob(transactional_db: None, bob: User) -> Program:
    """A program of bob's."""
    return Program(bob)


@pytest.fixture
def as_charlie(transactional_db: None) -> Program:
    """A program that says nothing of who it is."""
    return Program()


@pytest.fixture
def as_olivia(transactional_db: None, olivia: User) -> Program:
    """A program of olivia's."""
    return Program(olivia)


@pytest.fixture
def model(serve: Callable[..., None], tmp_path: Path) -> Iterator[ScriptedModel]:
    """The model behind the default agent; its gates are opened at the end."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model: ScriptedModel) -> Gate:
    """A first turn that stops in mid-answer, at the gate that this is."""
    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")


@pytest.fixture
def session(transactional_db: None, alice: User) -> str:
    """A session of alice's."""
    return open_session(alice)
