"""Turns of every kind, for agents of every policy: a user's message names its kind, and a provider without
memory answers by it, so that a turn that is resumed or retried goes the same way again."""

from typing import Any

from langgraph.graph import StateGraph

from runs.agents import agent
from tests.fakes import (
    Disconnect,
    Failure,
    Marks,
    Round,
    call,
    calls,
    fan_out_graph,
    numbered,
    plain_graph,
    say,
    served_model,
    tools,
)
from tests.processes.server import Data

# What a user may ask for, and how often beside the others.
KINDS = {
    "streaming": 5,
    "awaiting": 3,
    "blocking": 2,
    "heeding": 2,
    "parallel": 3,
    "asking": 2,
    "stubborn": 1,
    "failing": 1,
    "breaking": 1,
    "quick": 3,
}
_CHUNK = 0.03  # seconds between two


def build_asking() -> StateGraph[Any]:
    """Leaves what was interrupted to its user."""
    return fan_out_graph(served_model(), tools(Marks.from_environment()))


@agent(on_interrupt="resume", idempotent_tools=frozenset({"slow_async"}))
def build_resuming() -> StateGraph[Any]:
    """Goes on by itself where that is safe."""
    return fan_out_graph(served_model(), tools(Marks.from_environment()))


@agent(on_interrupt="dismiss")
def build_dismissing() -> StateGraph[Any]:
    """Closes what was interrupted. Another shape of graph, too."""
    return plain_graph(served_model(), tools(Marks.from_environment()))


AGENTS = {name: f"tests.processes.turns:build_{name}" for name in ("asking", "resuming", "dismissing")}


def text_of(kind: str, key: str) -> str:
    """A user's message."""
    return f"{kind} {key}"


def answer(messages: list[Data]) -> Round:
    """The round for a call with these messages, in OpenAI's form."""
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    kind, key = messages[last]["content"].split()
    if any(message["role"] == "tool" for message in messages[last:]):
        return Round(numbered(10, _CHUNK))
    match kind:
        case "streaming":
            return Round(numbered(20 + int(key[:2], 16) % 40, _CHUNK))
        case "awaiting":
            return call("slow_async", seconds=1.0)
        case "blocking":
            return calls(("mark", {"x": key}), ("slow_sync", {"seconds": 1.5}))
        case "heeding":
            return call("heeding_sync", seconds=3)
        case "parallel":
            return calls(
                ("mark", {"x": key, "seconds": 0.2}),
                ("slow_async", {"seconds": 0.7}),
                ("heeding_sync", {"seconds": 1}),
            )
        case "asking":
            return call("ask", question=f"Really {key}?")
        case "stubborn":
            return call("slow_sync", seconds=4)
        case "failing":
            return Round(numbered(8, _CHUNK), Failure())
        case "breaking":
            return Round(numbered(8, _CHUNK), Disconnect())
    return say(f"Fine {key}.")
