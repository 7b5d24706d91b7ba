"""The graphs of the zoo, each as somebody would write it, and the story of its whole life."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import RetryPolicy

from tests import ROOT
from tests.zoo import tools
from tests.zoo.ledger import Ledger
from tests.zoo.model import GO, PlannedModel

Built = StateGraph[Any, Any, Any, Any]

# A model that has nothing to do before the turns that follow the one that is looked at.
LATER = "writer"


@dataclass(frozen=True)
class Graph:
    """One graph of the zoo."""

    build: Callable[[Ledger], Built]
    story: tuple[str, ...]  # who works in its whole life: models (with the number of pieces) and tools
    points: tuple[str, ...]  # where the gate interferes
    stuck: str  # where it is held in a thread, if it has threads
    asks: bool = True  # whether it has the tool that asks the user
    foreign: frozenset[str] = frozenset()  # tools that come with a package and keep no ledger
    functions: frozenset[str] = frozenset()  # that nothing but their node knows of
    repeats: frozenset[str] = frozenset()  # tools that the graph itself tries again

    def all_points(self) -> list[str]:
        """Each moment of the whole life."""
        counted: dict[str, int] = {}
        found = []
        for actor in self.story:
            name, _, pieces = actor.partition(" ")
            kinds = (
                ["llm.start", *["llm.chunk"] * int(pieces), "llm.end"]
                if pieces
                else ["tool.start", "tool.end"]
            )
            for kind in kinds:
                number = counted[f"{kind} {name}"] = counted.get(f"{kind} {name}", 0) + 1
                found.append(f"{kind} {name} {number}")
        return found


def _round_trip(model: Any, tool_node: Any, **options: Any) -> Built:
    """The usual shape: a node for the model and one for its tools."""
    graph: Built = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tool_node, **options)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


def _asking(model: PlannedModel) -> Callable[[MessagesState], Any]:
    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return call_model


def loop(ledger: Ledger) -> Built:
    """A whole agent in one plain function."""
    model = PlannedModel(ledger=ledger, plan=[[("note", "one"), ("note", "two")], [("note", "three")]])
    by_name = {tool.name: tool for tool in (tools.note(ledger),)}

    def agent(state: MessagesState) -> dict[str, Any]:
        new: list[AnyMessage] = []
        while True:
            answer = model.invoke([*state["messages"], *new])
            new.append(answer)
            if not answer.tool_calls:
                return {"messages": new}
            for call in answer.tool_calls:
                new.append(by_name[call["name"]].invoke(call))

    graph: Built = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    return graph


def stream(ledger: Ledger) -> Built:
    """A plain node that reads a long stream."""
    model = PlannedModel(ledger=ledger, words=" ".join(["word"] * 40))

    def write(state: MessagesState) -> dict[str, Any]:
        pieces: Iterator[AIMessageChunk] = model.stream(state["messages"])
        whole = next(pieces)
        for piece in pieces:
            whole += piece
        return {"messages": [AIMessage(whole.text, id=whole.id)]}

    graph: Built = StateGraph(MessagesState)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    return graph


def subagent(ledger: Ledger) -> Built:
    """A tool that blocks its thread while another agent works."""
    from langchain.agents import create_agent

    inner = PlannedModel(ledger=ledger, who="inner", plan=[[("note", "one")], [("note", "two")]])
    agent = create_agent(inner, [tools.note(ledger)])

    def ask_agent(word: str) -> str:
        return agent.invoke({"messages": [("user", f"{GO} {word}")]})["messages"][-1].text

    model = PlannedModel(ledger=ledger, plan=[[("helper", "there")]])
    return _round_trip(_asking(model), ToolNode([tools.helper(ledger, ask_agent), tools.ask(ledger)]))


def by_hand(ledger: Ledger) -> Built:
    """A node that runs its tools itself: one as a tool, one as the function it is."""
    model = PlannedModel(
        ledger=ledger, plan=[[("note", "one"), ("remember", "two")], [("remember", "three")]]
    )
    note, remember = tools.note(ledger), tools.remember(ledger)

    def run_tools(state: MessagesState) -> dict[str, Any]:
        results: list[AnyMessage] = []
        asking = state["messages"][-1]
        assert isinstance(asking, AIMessage)
        for call in asking.tool_calls:
            result = (
                note.invoke(call["args"])
                if call["name"] == "note"
                else remember(call["args"]["word"], call["args"]["call"])
            )
            results.append(ToolMessage(result, tool_call_id=call["id"], name=call["name"]))
        return {"messages": results}

    return _round_trip(_asking(model), run_tools)


def retrying(ledger: Ledger) -> Built:
    """A node that is tried again when its tool fails."""
    model = PlannedModel(ledger=ledger, plan=[[("flaky", "one")]])
    node = ToolNode([tools.flaky(ledger), tools.ask(ledger)], handle_tool_errors=False)
    again = RetryPolicy(initial_interval=0.02, jitter=False, retry_on=tools.Unlucky)
    return _round_trip(_asking(model), node, retry_policy=again)


def supervisor(ledger: Ledger) -> Built:
    """langgraph-supervisor with one worker."""
    from langchain.agents import create_agent
    from langgraph_supervisor import create_supervisor

    inner = PlannedModel(ledger=ledger, who="inner", plan=[[("note", "one"), ("look", "two")]])
    worker = create_agent(inner, [tools.note(ledger), tools.look(ledger)], name="worker")
    model = PlannedModel(ledger=ledger, plan=[[("transfer_to_worker", {})]])
    return create_supervisor([worker], model=model, tools=[tools.ask(ledger)])


def deep(ledger: Ledger) -> Built:
    """deepagents with one sub-agent."""
    from deepagents import create_deep_agent

    inner = PlannedModel(ledger=ledger, who="inner", plan=[[("note", "one")]])
    task = {"description": f"{GO} there", "subagent_type": "helper"}
    model = PlannedModel(ledger=ledger, plan=[[("look", "two")], [("task", task)]])
    helper: Any = {
        "name": "helper",
        "description": "Helps.",
        "system_prompt": "Help.",
        "model": inner,
        "tools": [tools.note(ledger)],
    }
    given = [tools.look(ledger), tools.ask(ledger)]
    agent = create_deep_agent(model, given, system_prompt="Work.", subagents=[helper])
    return agent.builder


def mcp(ledger: Ledger) -> Built:
    """langchain's agent with a tool of an MCP server, which is started for each call."""
    from langchain.agents import create_agent
    from langchain_mcp_adapters.tools import convert_mcp_tool_to_langchain_tool
    from mcp.types import Tool

    schema = {
        "type": "object",
        "properties": {"word": {"type": "string"}, "call": {"type": "string"}},
        "required": ["word", "call"],
    }
    post = convert_mcp_tool_to_langchain_tool(
        None,
        Tool(name="post", description="Post a word.", inputSchema=schema),
        connection={
            "transport": "stdio",
            "command": sys.executable,
            "args": ["-m", "tests.zoo.mcp_server", str(ledger.folder)],
            "cwd": str(ROOT),
        },
    )
    model = PlannedModel(ledger=ledger, plan=[[("post", "one")]])
    return create_agent(model, [post, tools.ask(ledger)]).builder


# Graphs that do something to their memory


def _before(name: str, node: Any, model: PlannedModel, ledger: Ledger) -> Built:
    """The usual shape, with a node that comes first."""
    graph: Any = StateGraph(MessagesState)
    graph.add_node(name, node)
    graph.add_node("model", _asking(model))
    graph.add_node("tools", ToolNode([tools.note(ledger), tools.ask(ledger)]))
    graph.add_edge(START, name)
    graph.add_edge(name, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


def rewriting(ledger: Ledger) -> Built:
    """Says the user's words anew, without their id."""

    def rewrite(state: MessagesState) -> dict[str, Any]:
        *before, last = state["messages"]
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *before, HumanMessage(last.content)]}

    return _before("rewrite", rewrite, PlannedModel(ledger=ledger, plan=[[("note", "one")]]), ledger)


def trimming(ledger: Ledger) -> Built:
    """Remembers nothing of earlier turns."""

    def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(str(message.id)) for message in state["messages"][:-1]]}

    return _before("trim", trim, PlannedModel(ledger=ledger, plan=[[("note", "one")]]), ledger)


def summarising(ledger: Ledger) -> Built:
    """langchain's agent, with a summary in place of all but the last messages, also in mid-turn."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import SummarizationMiddleware

    writer = PlannedModel(ledger=ledger, who=LATER, words="A summary.")
    model = PlannedModel(ledger=ledger, plan=[[("note", "one")]])
    summary = SummarizationMiddleware(writer, trigger=("messages", 6), keep=("messages", 4))
    return create_agent(model, [tools.note(ledger), tools.ask(ledger)], middleware=[summary]).builder


def routing(ledger: Ledger) -> Built:
    """Asks a model where to go, and keeps nothing of what it says."""
    router = PlannedModel(ledger=ledger, who="router")

    async def route(state: MessagesState) -> None:
        await router.ainvoke(state["messages"])

    return _before("route", route, PlannedModel(ledger=ledger, plan=[[("note", "one")]]), ledger)


def plain(ledger: Ledger) -> Built:
    """Gives its messages as data."""
    model = PlannedModel(ledger=ledger, plan=[[("note", "one")]])

    def greet(state: MessagesState) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": "Let me see."}]}

    return _before("greet", greet, model, ledger)


def remembering(ledger: Ledger) -> Built:
    """A node that is a graph with a memory of its own."""
    model = PlannedModel(ledger=ledger, plan=[[("note", "one")]])
    memory: Any = _round_trip(_asking(model), ToolNode([tools.note(ledger)])).compile(checkpointer=True)
    graph: Built = StateGraph(MessagesState)
    graph.add_node("memory", memory)
    graph.add_edge(START, "memory")
    return graph


GRAPHS = {
    "loop": Graph(
        loop,
        ("outer 3", "note", "note", "outer 3", "note", "outer 3"),
        ("llm.chunk outer 1", "tool.start note 1", "tool.end note 3", "llm.chunk outer 7"),
        "tool.start note 2",
        asks=False,
    ),
    "stream": Graph(
        stream, ("outer 40",), ("llm.start outer 1", "llm.chunk outer 7"), "llm.chunk outer 7", asks=False
    ),
    "subagent": Graph(
        subagent,
        ("outer 3", "helper", "inner 3", "note", "inner 3", "note", "inner 3", "outer 3"),
        ("tool.start helper 1", "llm.chunk inner 2", "tool.start note 1"),
        "tool.start note 1",
    ),
    "by hand": Graph(
        by_hand,
        ("outer 3", "note", "remember", "outer 3", "remember", "outer 3"),
        ("tool.start note 1", "tool.end note 1", "tool.start remember 1"),
        "tool.start note 1",
        asks=False,
        functions=frozenset({"remember"}),
    ),
    "retrying": Graph(
        retrying,
        ("outer 3", "flaky", "flaky", "outer 3"),
        ("tool.start flaky 1", "tool.start flaky 2"),
        "tool.start flaky 1",
        repeats=frozenset({"flaky"}),
    ),
    "supervisor": Graph(
        supervisor,
        ("outer 3", "inner 3", "note", "look", "inner 3", "outer 3"),
        ("llm.end outer 1", "tool.start note 1", "tool.start look 1", "llm.chunk outer 4"),
        "tool.start note 1",
        foreign=frozenset({"transfer_to_worker", "transfer_back_to_supervisor"}),
    ),
    "deep": Graph(
        deep,
        ("outer 3", "look", "outer 3", "inner 3", "note", "inner 3", "outer 3"),
        ("tool.start look 1", "llm.chunk inner 1", "tool.start note 1"),
        "tool.start note 1",
        foreign=frozenset({"task"}),
    ),
    **{
        name: Graph(
            build,
            (*first, "outer 3", "note", "outer 3"),
            ("llm.chunk outer 2", "tool.start note 1", "llm.chunk outer 5"),
            "tool.start note 1",
        )
        for name, build, first in (
            ("rewriting", rewriting, ()),
            ("trimming", trimming, ()),
            ("summarising", summarising, ()),
            ("routing", routing, ("router 3",)),
            ("plain", plain, ()),
        )
    },
    "remembering": Graph(
        remembering,
        ("outer 3", "note", "outer 3"),
        ("llm.chunk outer 2", "tool.start note 1", "llm.chunk outer 5"),
        "tool.start note 1",
        asks=False,
    ),
    "mcp": Graph(mcp, ("outer 3", "post", "outer 3"), ("tool.start post 1",), ""),
}
