"""The engine's tests serve graphs of their own: they pass with the product deleted."""

from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True)
def default_agent(serve: Callable[..., None]) -> None:
    """An agent that says nothing. It is named, so that LangGraph loads when a test runs it."""
    serve("tests.fakes:silent_graph")
