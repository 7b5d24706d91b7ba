"""The engine's tests serve graphs of their own: they pass with the product deleted."""

import pytest

from tests.fakes import ScriptedModel, fan_out_graph


@pytest.fixture(autouse=True)
def default_agent(serve):
    """An agent that says nothing it was not told to."""
    serve(lambda: fan_out_graph(ScriptedModel()))
