"""The configured agents: a name, and the function that returns its graph, compiled or not."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypedDict, TypeVar

from django.conf import settings

from runs import tool_nodes
from runs.errors import AgentMismatch

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph, StateGraph
    from langgraph.prebuilt import ToolNode

logger = logging.getLogger(__name__)

BuildGraph: TypeAlias = Callable[
    [], "StateGraph[Any, Any, Any, Any] | CompiledStateGraph[Any, Any, Any, Any]"
]
GenerateTitle: TypeAlias = Callable[[str, str], Awaitable[str | None]]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Policy:
    """What an agent says about itself, by the ``agent`` decorator on the function that builds its graph."""

    title: str = ""  # how people call it
    description: str = ""  # one sentence for the list of agents
    on_interrupt: str = "ask"  # "ask", "resume" or "dismiss": what happens to an interrupted run
    idempotent_tools: frozenset[str] = field(default_factory=frozenset)  # may run twice without harm
    generate_title: GenerateTitle | None = None  # (user's text, answer) -> title, or None to keep the words
    recursion_limit: int | None = None  # steps of a run, up to RUNS_STEP_LIMIT; None: the graph's own limit


class AnswerRefused(ValueError):
    """Raise this in a node or a tool to refuse an answer. The user is told what it says, and asked again.

    No error handling of a ToolNode takes it for a failure of the tool.
    """

    _langgraph_invalid_resume = True  # the mark that LangGraph gives to answers that do not fit their schema


def agent(**policy: Any) -> Callable[[F], F]:
    """Attach a Policy to a function that builds a graph."""

    def attach(build: F) -> F:
        build.policy = Policy(**policy)  # type: ignore[attr-defined]
        return build

    return attach


@dataclass(frozen=True)
class Agent:
    """A configured agent, its graph compiled once without a saver."""

    name: str
    policy: Policy
    graph: "CompiledStateGraph[Any, Any, Any, Any]"
    tool_nodes: "tuple[ToolNode, ...]" = ()  # of it and of all graphs in it

    @cached_property
    def gated_tools(self) -> frozenset[str]:
        """The names of the tools that ToolNodes run, so that their starts are committed before they begin."""
        return frozenset(name for node in self.tool_nodes for name in node.tools_by_name)

    def graph_on(self, saver: Any) -> "CompiledStateGraph[Any, Any, Any, Any]":
        """The graph with ``saver`` as its checkpointer."""
        return self.graph.copy(update={"checkpointer": saver})


_built: dict[tuple[str, Any], Agent] = {}  # by name and function


def names() -> list[str]:
    """The configured names, the default first."""
    return list(settings.AGENTS)


def policy_of(name: str) -> Policy:
    """What the agent says about itself. Raises AgentMismatch when it is not configured."""
    return getattr(_function(name), "policy", Policy())


def built(name: str) -> Agent | None:
    """The agent of that name if its graph has been built. Raises AgentMismatch when it is not configured."""
    _function(name)
    return _built.get((name, settings.AGENTS[name]))


def load(name: str) -> Agent:
    """The agent of that name. Building its graph may take seconds. Raises AgentMismatch like ``built``."""
    agent = built(name)
    if agent is None:
        build = _function(name)
        found: Any = build()
        graph = found if hasattr(found, "invoke") else found.compile()
        _hide_remote_graphs(graph)
        agent = Agent(name, getattr(build, "policy", Policy()), graph, tool_nodes.find(graph))
        _built[name, settings.AGENTS[name]] = agent
    return agent


def _hide_remote_graphs(graph: "CompiledStateGraph[Any, Any, Any, Any]") -> None:
    """Read no state from their servers, which may not answer. What they remember is no part of ours."""
    from langgraph.pregel import Pregel

    for _, subgraph in (("", graph), *graph.get_subgraphs(recurse=True)):
        for node in subgraph.nodes.values() if isinstance(subgraph, Pregel) else ():
            node.subgraphs = [one for one in node.subgraphs if isinstance(one, Pregel)]


def warm_up() -> None:
    """Build all graphs before the first turn needs one: importing a model's client takes seconds."""
    for name in names():
        try:
            load(name)
        except Exception:  # the function may raise anything; the agent's turns will fail and say why
            logger.exception("The agent %s cannot be built.", name)


def for_reading(name: str) -> Agent:
    """The agent of that name. If it is not configured any more, an agent that can only read messages."""
    try:
        return load(name)
    except AgentMismatch:
        return _reader()


@cache
def _reader() -> Agent:
    from langgraph.channels import DeltaChannel
    from langgraph.constants import START
    from langgraph.graph.message import _messages_delta_reducer
    from langgraph.graph.state import StateGraph

    class Messages(TypedDict):
        """Reads what any reducer has stored: this kind of channel takes a plain list as well as deltas."""

        messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(Messages)
    graph.add_node("nothing", lambda state: None)
    graph.add_edge(START, "nothing")
    return Agent("", Policy(), graph.compile())


def _function(name: str) -> BuildGraph:
    path = settings.AGENTS.get(name)
    if path is None:
        raise AgentMismatch
    return resolve_name(path) if isinstance(path, str) else path


def forget() -> None:
    """Build all graphs anew when they are next needed. For tests that change ``AGENTS``."""
    _built.clear()
