"""Finds the ToolNodes of a graph at every depth: in subgraphs, and in agents that a tool or a node calls."""

import functools
import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph.prebuilt import ToolNode

_CONTAINERS = (list, tuple, set, frozenset)


def find(graph: Any) -> "tuple[ToolNode, ...]":
    """The ToolNodes that can be reached from a compiled graph.

    An agent that a tool builds anew at each call is not found.
    """
    from langgraph.prebuilt import ToolNode

    seen: set[int] = set()
    found: list[ToolNode] = []
    waiting: list[Any] = [graph]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, ToolNode):
            found.append(thing)
        waiting.extend(_parts(thing))
    return tuple(found)


def _parts(thing: Any) -> Iterable[Any]:
    """What belongs to a thing and may hold a graph. Clients of models and the like are not searched."""
    from langchain_core.language_models import BaseLanguageModel
    from langchain_core.runnables import Runnable
    from langgraph.pregel._read import PregelNode

    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, _CONTAINERS):
        return thing
    if isinstance(thing, functools.partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    if inspect.ismethod(thing):
        return (thing.__func__, thing.__self__)
    if inspect.isfunction(thing):
        return _held_by(thing)
    if isinstance(thing, Runnable | PregelNode) and not isinstance(thing, BaseLanguageModel | type):
        return getattr(thing, "__dict__", {}).values()
    return ()


def _held_by(function: Any) -> Iterator[Any]:
    """What a function refers to: its closure, its defaults, and the globals that it names."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
