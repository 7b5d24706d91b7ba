"""The model behind the default agent."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.fakes import ScriptedModel
    from tests.provider import Gate


@pytest.fixture
def model(serve: Callable[[Callable[[], Any]], None], tmp_path: Path) -> "Iterator[ScriptedModel]":
    """The model behind the default agent; its gates are opened at the end."""
    from tests.fakes import Marks, ScriptedModel, plain_graph, tools

    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted, tools(Marks(tmp_path / "marks"))))
    yield scripted
    scripted.script.open_all()


@pytest.fixture
def held(model: "ScriptedModel") -> "Gate":
    """A first turn that stops in mid-answer, at the gate that this is."""
    from tests.fakes import Hold, Round, text

    model.script.add(Round(text("Hello "), Hold("middle"), text("world")))
    return model.script.gate("middle")
