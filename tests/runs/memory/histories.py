"""Messages, turns as the log knows them, and graphs that are cut where it hurts."""

import asyncio
import operator
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Send

from runs.log.transcript import LoggedCall, Message, Transcript, UserMessage
from runs.memory.normalise import HistoryChanges
from runs.memory.repair import repair
from runs.states import Effect, RunStatus, ToolStatus
from tests.fakes import unsendable

SESSION = "session"
CONFIG: Any = {"configurable": {"thread_id": SESSION}}
AT = datetime(2026, 1, 1, tzinfo=UTC)


class Deltas(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
    notes: Annotated[list[str], operator.add]
    topic: str


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    topic: str


class Added(TypedDict):
    """A reducer that knows nothing of ids or removals."""

    messages: Annotated[list[AnyMessage], operator.add]
    notes: Annotated[list[str], operator.add]
    topic: str


SCHEMAS = {"plain": Plain, "deltas": Deltas, "added": Added}
SHAPES = pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS.keys())


def asking(*calls: str, id: str = "a1", text: str = "", **fields: Any) -> AIMessage:  # noqa: A002
    tool_calls = [{"name": "tool", "args": {"n": call}, "id": call} for call in calls]
    return AIMessage(text, id=id, tool_calls=tool_calls, **fields)


def result(call: str, **fields: Any) -> ToolMessage:
    return ToolMessage(f"real {call}", tool_call_id=call, id=f"t-{call}", **fields)


def user(number: int = 1) -> HumanMessage:
    return HumanMessage(f"question {number}", id=f"u{number}")


def said(id: str, text: str = "", status: Any = "complete", calls: Any = (), **fields: Any) -> Message:  # noqa: A002
    return Message(id, "run", "assistant", text, status, AT, calls=list(calls), **fields)


def called(id: str, message: str = "a1", **fields: Any) -> LoggedCall:  # noqa: A002
    return LoggedCall(
        id,
        "tool",
        {"n": id},
        message,
        **({"status": ToolStatus.CANCELLED, "effect": Effect.UNKNOWN} | fields),
    )


def turn(number: int = 1, *messages: Message, status: RunStatus | None = RunStatus.CANCELLED) -> Transcript:
    run_id = f"run{number}"
    return Transcript(
        run_id, UserMessage(f"u{number}", run_id, f"question {number}", AT), list(messages), status
    )


def words(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in messages]


async def finished_tasks(graph: Any, wanted: int) -> None:
    """Return once ``wanted`` tasks of the unfinished step have their writes pending."""
    while True:
        state = await graph.aget_state(CONFIG, subgraphs=True)
        tasks = [*state.tasks, *(task for outer in state.tasks if outer.state for task in outer.state.tasks)]
        if sum(bool(task.result) for task in tasks) >= wanted:
            return
        await asyncio.sleep(0)


async def history(graph: Any) -> list[BaseMessage]:
    state = await graph.aget_state(CONFIG)
    assert state.next == (), "nothing is pending after a repair"
    assert not state.interrupts
    return state.values["messages"]


async def count_checkpoints(graph: Any) -> int:
    return len([None async for _ in graph.checkpointer.alist(CONFIG)])


async def cut(graph: Any, given: Any, until: Callable[[], Awaitable[Any]]) -> None:
    """Run the graph on ``given`` and cancel it once ``until`` returns."""
    task = asyncio.create_task(graph.ainvoke(given, CONFIG, durability="sync"))
    async with asyncio.timeout(10):
        await until()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def assert_repaired(graph: Any, turns: list[Transcript], **given: Any) -> list[BaseMessage]:
    """Repair, judge by a strict provider, and see that doing it again writes nothing."""
    report = await repair(graph, SESSION, turns, **given)
    assert report.changed
    messages = await history(graph)
    assert unsendable([*messages, HumanMessage("next", id="next")]) is None
    before = await count_checkpoints(graph)
    again = await repair(graph, SESSION, turns, **given)
    assert not again.changed
    assert again.changes == HistoryChanges()
    assert await count_checkpoints(graph) == before
    return messages


class Agent:
    """A graph that answers each question with three calls, one task each; ``held`` ones wait for ever."""

    def __init__(self, schema: Any, held: set[str], calls: tuple[str, ...] = ("c0", "c1", "c2")) -> None:
        self.held = held
        self.calls = calls
        self.running: set[str] = set()
        self.all_running = asyncio.Event()
        self.seen: list[list[BaseMessage]] = []
        builder = StateGraph(schema)
        builder.add_node("agent", self.agent)
        builder.add_node("tool", self.tool)
        builder.add_edge(START, "agent")
        builder.add_conditional_edges("agent", self.route, ["tool", END])
        builder.add_edge("tool", "agent")
        self.graph: Any = builder.compile(checkpointer=InMemorySaver())

    async def agent(self, state: Any) -> Any:
        messages = state["messages"]
        self.seen.append(list(messages))
        number = len(self.seen)
        if number == 1:
            return {"messages": [asking(*self.calls)]}
        return {"messages": [AIMessage("an answer", id=f"a{number}")]}

    def route(self, state: Any) -> Any:
        last = state["messages"][-1]
        return [Send("tool", {"call": call}) for call in last.tool_calls] or END

    async def tool(self, state: Any) -> Any:
        call = state["call"]["id"]
        self.running.add(call)
        if self.running >= set(self.calls):
            self.all_running.set()
        if call in self.held:
            await asyncio.Event().wait()
        return {"messages": [result(call)], "notes": [call]}

    async def cut(self) -> None:
        async def until() -> None:
            await self.all_running.wait()
            await finished_tasks(self.graph, len(self.calls) - len(self.held))

        await cut(self.graph, {"messages": [user()], "notes": ["start"], "topic": "kept"}, until)


class Talker:
    """A graph whose model is cut while it speaks, or before."""

    def __init__(self, schema: Any = MessagesState, node: Any = None) -> None:
        self.speaking = asyncio.Event()
        builder = StateGraph(schema)
        builder.add_node("agent", node or self.agent)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", END)
        self.graph: Any = builder.compile(checkpointer=InMemorySaver())
        self.is_cut = True

    async def agent(self, state: Any) -> Any:
        if self.is_cut:
            self.speaking.set()
            await asyncio.Event().wait()
        return {"messages": [AIMessage("an answer")]}

    async def cut(self, number: int = 1) -> None:
        self.speaking.clear()
        await cut(self.graph, {"messages": [user(number)]}, self.speaking.wait)
