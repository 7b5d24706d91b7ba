import pytest

from tests.fakes import Hold, Marks, Round, ScriptedModel, fan_out_graph, text, tools


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path / "marks")


@pytest.fixture
def model(serve, marks):
    """The model behind the agents ``assistant`` and ``other``; its gates are opened at the end."""
    scripted = ScriptedModel()

    def build():
        return fan_out_graph(scripted, tools(marks))

    serve(build, other=build)
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model):
    """A first turn that stops in mid-answer, at the gate that this is."""
    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")
