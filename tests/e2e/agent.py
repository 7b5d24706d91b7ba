"""The default agent, with tools that do what the product's own never do: block without listening."""

from typing import Any

from langgraph.graph.state import StateGraph

from chat.agent.graph import build
from chat.agent.model import chat_model
from chat.agent.titles import title_of_turn
from chat.agent.tools import TOOLS
from runs.agents import agent
from tests.fakes.tools import Marks, ask_tool, slow_sync_tool


@agent(title="Assistant", generate_title=title_of_turn)
def build_graph() -> StateGraph[Any]:
    marks = Marks.from_environment()
    return build(chat_model(), [*TOOLS, slow_sync_tool(marks), ask_tool(marks)])
