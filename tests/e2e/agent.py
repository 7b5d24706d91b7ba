"""The agents of these tests: the default one, with tools that block without listening, and one that asks."""

import asyncio
from contextlib import suppress
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState
from langgraph.graph.state import StateGraph
from langgraph.types import interrupt

from chat.agent.graph import build
from chat.agent.model import chat_model
from chat.agent.titles import title_of_turn
from chat.agent.tools import TOOLS
from runs.agents import AnswerRefused, agent
from tests.fakes.tools import Marks, ask_tool, held_sync_tool, slow_sync_tool


@agent(title="Assistant", generate_title=title_of_turn)
def build_graph() -> StateGraph[Any]:
    marks = Marks.from_environment()
    own = [slow_sync_tool(marks), held_sync_tool(marks), leave_behind_tool(marks), ask_tool(marks)]
    return build(chat_model(), [*TOOLS, *own])


def leave_behind_tool(marks: Marks) -> BaseTool:
    left = set()

    async def swallow_cancels(mark: str) -> None:
        while mark not in marks.read():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    @tool
    async def leave_behind(mark: str) -> str:
        """Leave a task that swallows every cancel until somebody leaves a mark."""
        left.add(asyncio.create_task(swallow_cancels(mark)))
        return "It is at work."

    return leave_behind


@tool
def send_mail(to: str, subject: str, body: str, copies: list[str] | None = None, urgent: bool = False) -> str:
    """Send a mail, after a review by LangChain's middleware."""
    return f"Sent to {to}: {subject}"


@tool
def delete_mail(number: int) -> str:
    """Delete a mail, after a review by LangChain's middleware."""
    return f"Deleted {number}"


@tool
def book(city: str, nights: int) -> str:
    """Book a room, after a question in the form of LangGraph's HumanInterrupt."""
    config = {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True}
    action = {"action": "book", "args": {"city": city, "nights": nights}}
    request = {"action_request": action, "config": config, "description": f"Book a room in {city}?"}
    response = interrupt([request])[0]
    if response["type"] == "edit":
        city = response["args"]["args"]["city"]
        if city != "Rome":
            raise AnswerRefused("There are rooms in Rome only.")
    return f"{response['type']}: {city}"


@tool
def plan(city: str) -> str:
    """Plan a journey, after the user has filled in a form."""
    schema = {
        "type": "object",
        "properties": {
            "nights": {"type": "integer", "title": "Nights", "description": "At most a week", "default": 2},
            "class": {"enum": ["First", "Second"], "title": "Class"},
            "name": {"type": "string", "title": "Name on the ticket"},
            "pets": {"type": "boolean", "title": "With pets"},
        },
        "required": ["nights", "class", "name"],
    }
    return f"Planned: {interrupt(f'Your journey to {city}', response_schema=schema)}"


@agent(title="Reviewed")
def build_reviewed() -> StateGraph[Any]:
    allowed: Any = {"allowed_decisions": ["approve", "reject"]}
    middleware = HumanInTheLoopMiddleware({"send_mail": True, "delete_mail": allowed})
    return create_agent(chat_model(), [send_mail, delete_mail, book, plan], middleware=[middleware]).builder


@agent(title="Routed")
def build_routed() -> StateGraph[Any]:
    """Asks the model where to go, and keeps nothing of it."""
    model = chat_model()

    async def route(state: MessagesState) -> None:
        await model.ainvoke(state["messages"])

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("route", route)
    graph.add_node("reply", reply)
    graph.add_edge(START, "route")
    graph.add_edge("route", "reply")
    return graph
