from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import StateGraph

from tests.fakes import Hold, Marks, Round, ScriptedModel, fan_out_graph, text, tools
from tests.provider import Gate


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "marks")


@pytest.fixture
def model(serve: Callable[..., None], marks: Marks) -> Iterator[ScriptedModel]:
    """The model behind the agents ``assistant`` and ``other``; its gates are opened at the end."""
    scripted = ScriptedModel()

    def build() -> StateGraph[Any]:
        return fan_out_graph(scripted, tools(marks))

    serve(build, other=build)
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model: ScriptedModel) -> Gate:
    """A first turn that stops in mid-answer, at the gate that this is."""
    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")
