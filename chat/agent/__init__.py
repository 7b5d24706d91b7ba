"""The default agent: its graph, its model, its tools.

Imported by name only, from the setting AGENTS.
"""

from chat.agent.graph import build_graph

__all__ = ["build_graph"]
