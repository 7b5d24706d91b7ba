"""After a repair every provider takes the history; checked on real graphs, cut where it hurts."""

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
    SystemMessage,
    ToolMessage,
)
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Send, interrupt

from runs.log.transcript import LoggedCall, Message, Transcript, UserMessage, note_id
from runs.memory.normalise import HistoryChanges, engine_mark, normalise
from runs.memory.repair import RepairFailed, repair
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


class Whole(TypedDict):
    """No reducer: each node writes the whole list."""

    messages: list[AnyMessage]
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


@SHAPES
@pytest.mark.parametrize("held", [["c0"], ["c1"], ["c2"], ["c0", "c2"], ["c0", "c1", "c2"]], ids="".join)
async def test_real_results_of_parallel_calls_are_kept_in_the_order_of_the_calls(schema, held):
    agent = Agent(schema, set(held))
    await agent.cut()
    calls = [called(call, started=True) for call in agent.calls]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    for call, answer in zip(agent.calls, messages[2:5], strict=True):
        assert answer.tool_call_id == call
        assert (answer.text == f"real {call}") == (call not in held)
        assert (answer.status == "error") == (call in held)
    assert messages[-1].id == note_id("run1")
    assert engine_mark(messages[-1]) == "interrupted"
    values = (await agent.graph.aget_state(CONFIG)).values
    assert values["topic"] == "kept"
    assert sorted(values["notes"]) == sorted({"start", *agent.calls} - set(held)), (
        "what finished tools wrote stays"
    )
    # The next turn is a fresh one: the agent sees all of it, and no tool runs again.
    ran = set(agent.running)
    agent.running.clear()
    await agent.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    assert agent.running == set()
    assert words(agent.seen[-1]) == [*words(messages), ("human", "question 2")]
    assert ran == set(agent.calls)


@SHAPES
async def test_history_is_one_unbroken_line_with_one_root(schema):
    agent = Agent(schema, {"c1"})
    await agent.cut()
    await repair(agent.graph, SESSION, [turn(1, said("a1"))])
    await agent.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    line = [state async for state in agent.graph.aget_state_history(CONFIG)]
    ids = [state.config["configurable"]["checkpoint_id"] for state in line]
    parents = [state.parent_config and state.parent_config["configurable"]["checkpoint_id"] for state in line]
    assert parents == [*ids[1:], None]


@SHAPES
async def test_a_result_that_only_the_log_knows_is_taken_from_it(schema):
    agent = Agent(schema, {"c0", "c1", "c2"})
    await agent.cut()
    calls = [
        called("c0", status=ToolStatus.COMPLETED, result="from the log", effect=Effect.DONE),
        called("c1", status=ToolStatus.FAILED, error="it broke", effect=Effect.DONE),
        called("c2", effect=Effect.NONE),
    ]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [(message.text, message.status) for message in messages[2:4]] == [
        ("from the log", "success"),
        ("it broke", "error"),
    ]
    assert "before it ran" in messages[4].text


@SHAPES
async def test_a_call_says_as_much_of_its_effect_as_is_known(schema):
    agent = Agent(schema, {"c0", "c1", "c2"})
    await agent.cut()
    lost = {"status": ToolStatus.INTERRUPTED, "effect": Effect.UNKNOWN}
    calls = [called("c0", effect=Effect.NONE), called("c1", started=True, **lost), called("c2", **lost)]
    messages = await assert_repaired(agent.graph, [turn(1, said("a1", calls=calls))])
    assert [message.text for message in messages[2:5]] == [
        "This call was cancelled before it ran. It had no effect.",
        "This call was interrupted while it ran. It may have taken effect; its result is not known.",
        "This call was interrupted. It may have begun and taken effect; its result is not known.",
    ]


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


async def test_the_partial_answer_is_kept_in_the_logs_very_words_and_marked():
    talker = Talker()
    await talker.cut()
    partial = "  one two\n\nthree "
    messages = await assert_repaired(
        talker.graph, [turn(1, said("m1", partial, "interrupted", node="agent"))]
    )
    assert words(messages) == [("human", "question 1"), ("ai", partial)]
    assert messages[-1].id == "m1"
    assert engine_mark(messages[-1]) == "interrupted"


async def test_a_call_that_was_still_being_spelled_out_is_dropped_and_the_text_before_it_stays():
    talker = Talker()
    await talker.cut()
    spelling = said("m1", "Let me look.", "interrupted", [called("c1", "m1")])
    messages = await assert_repaired(talker.graph, [turn(1, spelling)])
    assert words(messages) == [("human", "question 1"), ("ai", "Let me look.")]
    assert messages[-1].tool_calls == []


async def test_the_closing_note_of_the_log_is_used_word_for_word():
    talker = Talker()
    await talker.cut()
    note = said(note_id("run1"), "Stopped by alice.", "interrupted")
    messages = await assert_repaired(talker.graph, [turn(1, note)])
    assert words(messages)[1:] == [("ai", "Stopped by alice.")]


@pytest.mark.parametrize("schema", [MessagesState, Deltas], ids=["plain", "deltas"])
async def test_the_user_message_is_there_when_the_run_died_before_its_first_checkpoint(schema):
    talker = Talker(schema)
    messages = await assert_repaired(talker.graph, [turn(1, status=RunStatus.INTERRUPTED)])
    assert [message.id for message in messages] == ["u1", note_id("run1")]
    talker.is_cut = False
    answer = await talker.graph.ainvoke({"messages": [user(2)]}, CONFIG)
    assert words(answer["messages"])[-2:] == [("human", "question 2"), ("ai", "an answer")]


async def test_several_turns_that_were_cancelled_in_the_queue_enter_in_their_order():
    talker = Talker()
    await talker.cut()
    turns = [turn(1, said("m1", "half", "interrupted")), turn(2), turn(3)]
    messages = await assert_repaired(talker.graph, turns)
    assert [message.id for message in messages] == ["u1", "m1", "u2", note_id("run2"), "u3", note_id("run3")]


async def test_a_turn_that_is_missing_before_one_that_is_there_enters_before_it():
    talker = Talker()
    await talker.cut(2)
    messages = await assert_repaired(talker.graph, [turn(1), turn(2)])
    assert [message.id for message in messages] == ["u1", note_id("run1"), "u2", note_id("run2")]


async def test_a_retried_turn_leaves_the_history_and_what_was_before_it_stays():
    talker = Talker()
    talker.is_cut = False
    await talker.graph.ainvoke({"messages": [user(1)]}, CONFIG)
    talker.is_cut = True
    await talker.cut(2)
    await repair(talker.graph, SESSION, [turn(2)])
    messages = await assert_repaired(talker.graph, [], drop={"u2"})
    assert words(messages) == [("human", "question 1"), ("ai", "an answer")]


async def test_a_retried_turn_goes_and_a_later_unrepaired_one_stays():
    talker = Talker()
    await talker.cut(1)
    messages = await assert_repaired(talker.graph, [turn(2)], drop={"u1"})
    assert [message.id for message in messages] == ["u2", note_id("run2")]


async def test_a_question_of_a_cancelled_run_is_gone_and_the_next_input_starts_afresh():
    def ask(state: Any) -> Any:
        return {"messages": [AIMessage(f"you said {interrupt('really?')}")]}

    graph = Talker(node=ask).graph
    await graph.ainvoke({"messages": [user(1)]}, CONFIG)
    assert (await graph.aget_state(CONFIG)).interrupts
    await assert_repaired(graph, [turn(1)])
    asked = await graph.ainvoke({"messages": [user(2)]}, CONFIG)
    assert [question.value for question in asked["__interrupt__"]] == ["really?"]
    assert words(asked["messages"])[-1] == ("human", "question 2")


async def test_a_turn_that_reached_the_step_limit_behind_a_tool_result_is_closed():
    def agent(state: Any) -> Any:
        return {"messages": [asking(f"c{len(state['messages'])}", id=f"a{len(state['messages'])}")]}

    def tool(state: Any) -> Any:
        return {"messages": [result(state["messages"][-1].tool_calls[0]["id"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tool", tool)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "tool")
    builder.add_edge("tool", "agent")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    from langgraph.errors import GraphRecursionError

    with pytest.raises(GraphRecursionError):
        await graph.ainvoke({"messages": [user()]}, CONFIG | {"recursion_limit": 4}, durability="sync")
    messages = await assert_repaired(graph, [turn(1, status=RunStatus.FAILED)])
    assert messages[-1].id == note_id("run1")
    assert [message.type for message in messages] == ["human", *["ai", "tool"] * 2, "ai"]


@SHAPES
@pytest.mark.parametrize("size", [2, 6])
async def test_orphans_in_the_middle_of_old_history_are_repaired(schema, size):
    agent = Agent(schema, set())
    old: list[BaseMessage] = []
    for number in range(size):
        old += [HumanMessage("old", id=f"o{number}"), asking(f"x{number}", f"y{number}", id=f"b{number}")]
        if number % 2:
            old += [result(f"y{number}")]
    old += [
        result("y0"),
        ToolMessage("of no call", tool_call_id="nobody", id="stray"),
        SystemMessage("s", id="s"),
    ]
    await agent.graph.aupdate_state(CONFIG, {"messages": old, "topic": "kept", "notes": ["n"]}, as_node=START)
    messages = await assert_repaired(agent.graph, [])
    assert [m.id for m in messages if m.type == "human"] == [f"o{number}" for number in range(size)]
    assert {m.tool_call_id for m in messages if m.text.startswith("real")} == {"y0"} | {
        f"y{number}" for number in range(1, size, 2)
    }
    assert (await agent.graph.aget_state(CONFIG)).values["topic"] == "kept"


async def test_a_channel_without_a_reducer_is_written_whole():
    async def agent(state: Any) -> Any:
        return {"messages": [*state["messages"], asking("c1")]}

    builder = StateGraph(Whole)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"messages": [user()], "topic": "kept"}, CONFIG)
    messages = await assert_repaired(graph, [turn(1, said("a1", calls=[called("c1")]))])
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]


async def test_the_routing_function_of_a_conditional_start_is_not_run():
    def route(state: Any) -> str:
        routed.append(state)
        return "agent"

    routed: list[Any] = []
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", talker.agent)
    builder.add_conditional_edges(START, route, ["agent"])
    builder.add_edge("agent", END)
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await talker.cut()
    seen = len(routed)
    await assert_repaired(talker.graph, [turn(1)])
    assert len(routed) == seen


async def test_a_node_that_waits_for_all_others_does_not_stay_ready():
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("agent", talker.agent)
    builder.add_node("quick", lambda state: {"messages": [AIMessage("quick", id="q")]})
    builder.add_node("last", lambda state: {"messages": [AIMessage("last")]}, defer=True)
    for node in ("agent", "quick"):
        builder.add_edge(START, node)
        builder.add_edge(node, "last")
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await cut(talker.graph, {"messages": [user()]}, lambda: finished_tasks(talker.graph, 1))
    messages = await assert_repaired(talker.graph, [turn(1)])
    assert words(messages) == [("human", "question 1"), ("ai", "quick")]


class Narrow(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def test_what_finished_tools_wrote_beyond_the_input_schema_stays():
    agent = Agent(Plain, {"c1"})
    builder = StateGraph(Plain, input_schema=Narrow)
    builder.add_node("agent", agent.agent)
    builder.add_node("tool", agent.tool)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", agent.route, ["tool", END])
    builder.add_edge("tool", "agent")
    agent.graph = builder.compile(checkpointer=InMemorySaver())
    await agent.cut()
    await assert_repaired(agent.graph, [turn(1, said("a1"))])
    assert sorted((await agent.graph.aget_state(CONFIG)).values["notes"]) == ["c0", "c2"]


@pytest.mark.parametrize("memory", [None, True], ids=["of the step", "of its own"])
async def test_a_nested_graph_is_repaired_with_the_graph(memory):
    inner = Agent(Plain, {"c1"})
    nested = StateGraph(Plain)
    nested.add_node("agent", inner.agent)
    nested.add_node("tool", inner.tool)
    nested.add_edge(START, "agent")
    nested.add_conditional_edges("agent", inner.route, ["tool", END])
    nested.add_edge("tool", "agent")
    outer = StateGraph(Plain)
    outer.add_node("inner", nested.compile(checkpointer=memory))
    outer.add_edge(START, "inner")
    inner.graph = outer.compile(checkpointer=InMemorySaver())

    async def until() -> None:
        await inner.all_running.wait()
        await finished_tasks(inner.graph, 2)

    await cut(inner.graph, {"messages": [user()], "notes": [], "topic": "kept"}, until)
    calls = [called(call, started=True) for call in inner.calls]
    asked = said("a1", calls=calls, node="agent", namespace=["inner:1234"])
    messages = await assert_repaired(inner.graph, [turn(1, asked)])
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "tool", "ai"]
    assert [message.text.startswith("real") for message in messages[2:5]] == [True, False, True]
    # The nested agent keeps its own copy of the conversation if it has a memory.
    await inner.graph.ainvoke({"messages": [user(2)]}, CONFIG, durability="sync")
    assert unsendable(inner.seen[-1]) is None
    assert words(inner.seen[-1])[-1] == ("human", "question 2")


async def test_words_that_the_graph_left_out_on_purpose_stay_out():
    talker = Talker()
    builder = StateGraph(MessagesState)
    builder.add_node("router", lambda state: {})
    builder.add_node("agent", talker.agent)
    builder.add_edge(START, "router")
    builder.add_edge("router", "agent")
    talker.graph = builder.compile(checkpointer=InMemorySaver())
    await talker.cut()
    log = [said("r", "billing", node="router"), said("m", "You ow", "interrupted", node="agent")]
    messages = await assert_repaired(talker.graph, [turn(1, *log)])
    assert words(messages)[1:] == [("ai", "You ow")]


async def test_an_answer_that_was_complete_in_an_unfinished_step_is_kept_with_its_calls():
    talker = Talker()
    await talker.cut()
    log = said("m", "Let me look.", calls=[called("c1", "m", effect=Effect.NONE)], node="agent")
    messages = await assert_repaired(talker.graph, [turn(1, log)])
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert "before it ran" in messages[2].text


async def test_the_end_of_a_long_history_is_repaired_without_writing_it_anew():
    talker = Talker(Deltas)
    talker.is_cut = False
    old = [m for n in range(300) for m in (HumanMessage("q", id=f"q{n}"), AIMessage("a", id=f"r{n}"))]
    await talker.graph.ainvoke({"messages": old}, CONFIG)
    talker.is_cut = True
    await talker.cut()
    report = await repair(talker.graph, SESSION, [turn(1, said("m", "half", "interrupted"))])
    assert report.written
    assert not report.rewritten
    assert words(await history(talker.graph))[-2:] == [("human", "question 1"), ("ai", "half")]


@pytest.mark.parametrize("schema", [Plain, Deltas], ids=["plain", "deltas"])
async def test_results_that_stand_too_late_at_the_end_are_moved_without_writing_all_anew(schema):
    talker = Talker(schema)
    old: list[BaseMessage] = [user(), AIMessage("an answer", id="x"), user(2), asking("c1", "c2", "c3")]
    await talker.graph.aupdate_state(
        CONFIG, {"messages": [*old, result("c3"), result("c2")]}, as_node="agent"
    )
    report = await repair(talker.graph, SESSION, [turn(2)])
    assert report.written
    assert not report.rewritten
    messages = await history(talker.graph)
    assert unsendable(messages) is None
    assert [message.tool_call_id for message in messages[4:7]] == ["c1", "c2", "c3"]
    assert [message.text for message in messages[5:7]] == ["real c2", "real c3"]


async def test_a_checkpoint_that_does_not_take_its_repair_is_reported():
    class Lost(InMemorySaver):
        async def aput(self, config, checkpoint, metadata, new_versions):  # type: ignore[no-untyped-def]
            return config

    with pytest.raises(RepairFailed):
        await repair(
            StateGraph(MessagesState).add_node("n", print).add_edge(START, "n").compile(Lost()),
            SESSION,
            [turn(1)],
        )


# Between turns that are in order already


def test_a_turn_that_was_left_out_goes_before_those_behind_it():
    given = [user(1), AIMessage("one", id="a1"), user(3), AIMessage("three", id="a3")]
    messages = normalise(given, [turn(2, status=RunStatus.CANCELLED)], order=["u1", "u2", "u3"])
    assert [message.id for message in messages if isinstance(message, HumanMessage)] == ["u1", "u2", "u3"]
    assert messages[-2:] == given[-2:]


def test_a_turn_that_is_taken_back_takes_none_behind_it_along():
    given = [user(1), AIMessage("one", id="a1"), user(2), AIMessage("two", id="a2")]
    assert normalise(given, [], order=["u1", "u2"], drop=["u1"]) == given[2:]


# Providers' own formats, without a graph


def mended(message: AIMessage, *behind: BaseMessage) -> list[BaseMessage]:
    given = [user(), message, *behind]
    messages = normalise(given, [])
    assert unsendable([*messages, user(2)]) is None
    assert normalise(messages, []) == messages
    return messages


def test_anthropic_blocks_of_a_call_without_a_name_are_dropped():
    content: Any = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"a'},
    ]
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "", "args": '{"a', "error": None}]
    messages = mended(AIMessage(content, id="a", invalid_tool_calls=invalid))
    assert messages[1].content == content[:2]
    assert messages[1].invalid_tool_calls == []


def test_openai_calls_in_additional_kwargs_are_dropped():
    listed = [{"id": "c1", "type": "function", "function": {"name": "tool", "arguments": '{"a'}}]
    message = AIMessage("I look.", id="a", additional_kwargs={"tool_calls": listed, "refusal": None})
    assert message.invalid_tool_calls, "the client files it apart"
    messages = mended(message)
    assert messages[1].additional_kwargs == {"refusal": None}
    assert words(messages)[1:] == [("ai", "I look.")]


def test_a_call_of_the_responses_api_goes_with_the_thought_that_led_to_it():
    content: Any = [
        {"type": "text", "text": "I look."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "tool", "arguments": '{"a'},
        {"type": "web_search_call", "id": "ws_1", "status": "in_progress"},
    ]
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "tool", "args": '{"a', "error": None}]
    message = AIMessage(
        content, id="a", invalid_tool_calls=invalid, response_metadata={"id": "resp_1", "model": "m"}
    )
    messages = mended(message)
    assert messages[1].content == content[:1]
    assert messages[1].response_metadata == {"model": "m"}, "the provider remembers the call under this id"


def test_a_server_side_call_stays_only_with_its_result():
    content: Any = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "found"},
        {"type": "server_tool_use", "id": "s2", "name": "web_search", "input": {}},
    ]
    assert normalise([user(), AIMessage(content, id="a")], [])[1].content == content[:3]


def test_a_broken_call_that_was_answered_stays_as_one_that_can_be_sent():
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "tool", "args": '{"a', "error": "no"}]
    answer = ToolMessage("These arguments are no JSON.", tool_call_id="c1", id="t", status="error")
    messages = mended(AIMessage("", id="a", invalid_tool_calls=invalid), answer, AIMessage("ok", id="b"))
    assert messages[1].tool_calls == [{"type": "tool_call", "id": "c1", "name": "tool", "args": {}}]
    assert messages[2] == answer
    assert len(messages) == 4


def test_a_call_that_the_log_still_holds_open_is_cancelled_since_nothing_runs_any_more():
    calls = [called("c1", status=ToolStatus.RUNNING, effect=None, started=True)]
    messages = normalise([user(), asking("c1")], [turn(1, said("a1", calls=calls), status=None)])
    assert engine_mark(messages[2]) == "cancelled"
    assert "while it ran" in messages[2].text


def test_results_go_to_the_nearest_message_when_ids_are_used_again():
    given = [
        user(),
        asking("0", id="a"),
        ToolMessage("first", tool_call_id="0", id="t1"),
        AIMessage("x", id="x"),
    ]
    given += [
        user(2),
        asking("0", id="b"),
        ToolMessage("second", tool_call_id="0", id="t2"),
        AIMessage("y", id="y"),
    ]
    assert normalise(given, []) == given


def test_a_second_result_of_a_call_and_an_empty_answer_are_dropped():
    messages = mended(
        asking("c1"), result("c1"), ToolMessage("again", tool_call_id="c1", id="t2"), AIMessage("", id="e")
    )
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[2].text == "real c1"


def test_what_is_in_form_already_comes_out_as_the_same_objects():
    given = [user(), asking("c1", "c2"), result("c1"), result("c2"), AIMessage("done", id="d")]
    assert all(map(operator.is_, normalise(given, []), given))


def test_the_mark_of_an_interrupted_answer_is_not_sent_to_providers():
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    messages = normalise([user()], [turn(1, said("m", "half", "interrupted"))])
    assert engine_mark(messages[-1]) == "interrupted"
    for model in (ChatOpenAI(model="m", api_key="k"), ChatAnthropic(model="m", api_key="k")):
        sent = model._get_request_payload([*messages, user(2)])
        assert "turnkeeper" not in repr(sent)
        assert "half" in repr(sent)
