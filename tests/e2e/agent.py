"""The agents of these tests: the default one, with tools that block without listening, and one that asks."""

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.graph.state import StateGraph
from langgraph.types import interrupt

from chat.agent.graph import build
from chat.agent.model import chat_model
from chat.agent.titles import title_of_turn
from chat.agent.tools import TOOLS
from runs.agents import AnswerRefused, agent
from tests.fakes.tools import Marks, ask_tool, slow_sync_tool


@agent(title="Assistant", generate_title=title_of_turn)
def build_graph() -> StateGraph[Any]:
    marks = Marks.from_environment()
    return build(chat_model(), [*TOOLS, slow_sync_tool(marks), ask_tool(marks)])


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
