import pytest

from tests.chat.api.programs import Program, open_session
from tests.fakes import Hold, Marks, Round, ScriptedModel, plain_graph, text, tools

SCHEMATHESIS = "schemathesis.pytest.plugin"


def pytest_pycollect_makemodule(module_path, parent):
    """Schemathesis collects what its ``parametrize`` makes; it takes seconds to load."""
    if module_path.name == "test_schema.py" and not parent.config.pluginmanager.has_plugin(SCHEMATHESIS):
        parent.config.pluginmanager.import_plugin(SCHEMATHESIS)


@pytest.fixture
def as_alice(transactional_db, alice):
    """A program of alice's."""
    return Program(alice)


@pytest.fixture
def as_bob(transactional_db, bob):
    """A program of bob's."""
    return Program(bob)


@pytest.fixture
def as_charlie(transactional_db):
    """A program that says nothing of who it is."""
    return Program()


@pytest.fixture
def as_olivia(transactional_db, olivia):
    """A program of olivia's."""
    return Program(olivia)


@pytest.fixture
def model(serve, tmp_path):
    """The model behind the default agent; its gates are opened at the end."""
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model):
    """A first turn that stops in mid-answer, at the gate that this is."""
    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")


@pytest.fixture
def session(transactional_db, alice):
    """A session of alice's."""
    return open_session(alice)
