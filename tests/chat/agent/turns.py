"""Turns of the default agent with a scripted model and the test tools."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from chat.agent.graph import build
from tests.fakes import (
    Marks,
    tools,
    unsendable,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
ASK: Any = {"messages": [HumanMessage("go")]}


def agent(model: Any, marks: Marks) -> Any:
    return build(model, tools(marks)).compile(checkpointer=InMemorySaver())


async def run(model: Any, marks: Marks) -> list[Any]:
    state = await agent(model, marks).ainvoke(ASK, CONFIG)
    messages: list[Any] = state["messages"]
    assert unsendable(messages) is None
    return messages


def results(messages: list[Any]) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]
