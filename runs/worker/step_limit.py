"""Bounds the steps of a turn's graphs.

The agent's own limit counts, up to RUNS_STEP_LIMIT. That is also what LangGraph takes for its default here.
So a graph inside the agent that has no limit gets it, too, and one that has a limit keeps it.
"""

from django.conf import settings
from langgraph._internal import _config

from runs.agents import Agent

_default = _config.DEFAULT_RECURSION_LIMIT


def of(agent: Agent) -> int:
    """How many steps a turn of this agent may take. A default keeps its type, by which LangGraph knows it."""
    ceiling = settings.RUNS_STEP_LIMIT
    _config.DEFAULT_RECURSION_LIMIT = type(_default)(min(_default, ceiling))
    own = agent.policy.recursion_limit or _config.ensure_config(agent.graph.config)["recursion_limit"]
    return type(own)(min(own, ceiling))
