"""Graphs of several shapes, so that what holds for one is seen to hold for any."""

import os
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import BaseTool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send

from tests.fakes.model import ScriptedModel
from tests.fakes.tools import Marks, tools


class DeltaState(TypedDict):
    """Messages stored as deltas."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def agent_graph(model: BaseChatModel, tools: Sequence[BaseTool] = ()) -> StateGraph[Any]:
    """The product's own agent with this model and these tools."""
    from chat.agent.graph import build  # here, so that the engine's tests run without the product

    return build(model, tools)


def fan_out_graph(model: BaseChatModel, tools: Sequence[BaseTool] = ()) -> StateGraph[Any]:
    """The default agent's shape and nothing more: delta messages, one task for each tool call."""
    bound = model.bind_tools(list(tools)) if tools else model

    async def llm_call(state: DeltaState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def fan_out(state: DeltaState) -> list[Send] | str:
        last = state["messages"][-1]
        asked = last.tool_calls if isinstance(last, AIMessage) else []
        return [Send("tool_node", [{**call, "type": "tool_call"}]) for call in asked] or END

    graph = StateGraph(DeltaState)
    graph.add_node("llm_call", llm_call)
    graph.add_node("tool_node", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "llm_call")
    graph.add_conditional_edges("llm_call", fan_out, ["tool_node", END])
    graph.add_edge("tool_node", "llm_call")
    return graph


def plain_graph(
    model: BaseChatModel, tools: Sequence[BaseTool] = (), *, handle_tool_errors: bool = True
) -> StateGraph[Any]:
    """Plain message state and the stock tool node: all calls of a message in one task."""
    bound = model.bind_tools(list(tools)) if tools else model

    async def llm_call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("llm_call", llm_call)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=handle_tool_errors))
    graph.add_edge(START, "llm_call")
    graph.add_conditional_edges("llm_call", tools_condition)
    graph.add_edge("tools", "llm_call")
    return graph


def sequential_graph(model: BaseChatModel, tools: Sequence[BaseTool] = ()) -> StateGraph[Any]:
    """The calls of one message run one after another, each in a step of its own."""
    bound = model.bind_tools(list(tools)) if tools else model

    async def llm_call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def next_call(state: MessagesState) -> Send | str:
        asking = next(message for message in reversed(state["messages"]) if isinstance(message, AIMessage))
        answered = {message.tool_call_id for message in state["messages"] if message.type == "tool"}
        for call in asking.tool_calls:
            if call["id"] not in answered:
                return Send("tool_node", [{**call, "type": "tool_call"}])
        return "llm_call" if asking.tool_calls else END

    graph = StateGraph(MessagesState)
    graph.add_node("llm_call", llm_call)
    graph.add_node("tool_node", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "llm_call")
    graph.add_conditional_edges("llm_call", next_call, ["tool_node", END])
    graph.add_conditional_edges("tool_node", next_call, ["tool_node", "llm_call"])
    return graph


def nested_graph(model: BaseChatModel, tools: Sequence[BaseTool] = ()) -> StateGraph[Any]:
    """The plain graph as a subgraph of another, between two nodes of its own."""

    async def before(state: MessagesState) -> Command[Any]:
        return Command(goto="inner")

    graph = StateGraph(MessagesState)
    graph.add_node("before", before, destinations=("inner",))
    graph.add_node("inner", plain_graph(model, tools).compile())
    graph.add_edge(START, "before")
    graph.add_edge("inner", END)
    return graph


def sync_graph(model: BaseChatModel, tools: Sequence[BaseTool] = ()) -> StateGraph[Any]:
    """Nodes that block: the model is called in a thread."""
    bound = model.bind_tools(list(tools)) if tools else model

    def llm_call(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("llm_call", llm_call)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    graph.add_edge(START, "llm_call")
    graph.add_conditional_edges("llm_call", tools_condition)
    graph.add_edge("tools", "llm_call")
    return graph


SHAPES = {
    "fan_out": fan_out_graph,
    "plain": plain_graph,
    "sequential": sequential_graph,
    "nested": nested_graph,
}


def served_model() -> BaseChatModel:
    """A client of the provider that ``OPENAI_BASE_URL`` names."""
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="scripted",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key="scripted",  # type: ignore[arg-type]
        stream_usage=True,
        streaming=True,
        max_retries=0,
    )


def silent_graph() -> StateGraph[Any]:
    """For ``AGENTS`` of tests in which the agent has nothing to say."""
    return fan_out_graph(ScriptedModel())


def build_served() -> StateGraph[Any]:
    """For ``AGENTS`` of a server under test: the fan-out shape with provider and marks by environment."""
    return fan_out_graph(served_model(), tools(Marks.from_environment()))
