"""The default agent's tools: bounded, exact, and deaf to nothing."""

import asyncio
import math
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from chat.agent.arithmetic import NotArithmetic, evaluate
from chat.agent.graph import build
from chat.agent.tools import IDEMPOTENT, MAX_NUMBER, MAX_WAIT, TOOLS
from runs.stopping.cancel_token import CancelToken, RunCancelled, current
from tests.fakes import ScriptedModel, call, say

settings.load_profile("ci")  # the same examples each time

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12 * (3 + 4)", "84"),
        ("1,000,000 / 4", "250000"),
        ("2 ^ 10", "1024"),
        ("2 ** 64", "18446744073709551616"),
        ("7 // 2 + 7 % 2", "4"),
        ("-3 - -4", "1"),
        ("0.1 + 0.2", "0.3"),
        ("sqrt(16) + abs(-2)", "6"),
        ("1 / 3", "0.333333333333333"),
        ("6 \u00d7 7 \u00f7 2", "21"),
        ("10 ** -2", "0.01"),
        ("1 ** 999999", "1"),
        ("1e3", "1000"),
    ],
)
def test_arithmetic_is_right(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "one plus one",
        "__import__('os').system('true')",
        "().__class__",
        "'a' * 10",
        "[1] * 10",
        "lambda: 1",
        "1 if True else 2",
        "True + 1",
        "2 ** 2 ** 2 ** 2 ** 2 ** 2",
        "9 ** 9 ** 9",
        "9 ** 5000",
        "10.0 ** 400",
        "1e308 * 10",
        "(-1) ** 0.5",
        "sqrt(-1)",
        "1 / 0",
        "1 % 0",
        "0 ** -1",
        "round(1e400)",
        "round(2.5, 1)",
        "sqrt(x=1)",
        "sqrt(10 ** 1000)",
        "1_0 +",
        "1, 2",
        "(" * 100 + "1" + ")" * 99,
        "-" * 199 + "x",
        "1\x00",
        "1" * 201,
    ],
)
def test_what_is_no_arithmetic_or_too_large_is_refused_with_a_sentence(expression: str) -> None:
    with pytest.raises(NotArithmetic, match=r"\.$"):
        evaluate(expression)


@given(st.text(alphabet="0123456789.+-*/%()^e ,sqrtab", max_size=200))
def test_any_text_is_evaluated_or_refused_in_no_time(expression: str) -> None:
    try:
        value = evaluate(expression)
    except NotArithmetic:
        return
    assert len(value) < 1_300


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("calculate", {"expression": "1" * 201}),
        ("wait", {"seconds": MAX_WAIT + 1}),
        ("wait", {"seconds": -1}),
        ("wait", {"seconds": math.inf}),
        ("count_primes", {"limit": MAX_NUMBER + 1}),
        ("keep_note", {"text": ""}),
        ("keep_note", {"text": "x" * 2_001}),
    ],
)
async def test_inputs_out_of_bounds_are_refused(name: str, arguments: dict[str, Any]) -> None:
    [result] = await results_of(call(name, **arguments))
    assert result.status == "error"


async def results_of(asked: Any, answer: Any = None) -> list[ToolMessage]:
    """The results of a round of calls, through the agent; ``answer`` answers the question, if any."""
    graph = build(ScriptedModel(asked, say("done")), TOOLS).compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG)
    if answer is not None:
        state = await graph.ainvoke(Command(resume=answer), CONFIG)
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def progress_of(asked: Any) -> list[str]:
    graph = build(ScriptedModel(asked, say("done")), TOOLS).compile()
    chunks = graph.astream({"messages": [HumanMessage("go")]}, stream_mode="tools")
    return [chunk["delta"] async for chunk in chunks if chunk["event"] == "tool-output-delta"]


async def test_waiting_tells_how_far_it_is() -> None:
    assert await progress_of(call("wait", seconds=1.1)) == ["2 s left\n", "1 s left\n"]


async def test_counting_tells_how_far_it_is_from_its_thread() -> None:
    deltas = await progress_of(call("count_primes", limit=10_000))
    assert deltas[0].endswith("up to 1,001\n")
    assert 5 <= len(deltas) <= 10


@pytest.mark.parametrize(("limit", "count"), [(2, "1"), (3, "2"), (100, "25"), (10_000, "1,229")])
async def test_primes_are_counted_right(limit: int, count: str) -> None:
    [result] = await results_of(call("count_primes", limit=limit))
    assert f"There are {count} prime numbers" in result.text


async def test_counting_stops_when_the_run_is_cancelled() -> None:
    """The blocking tool asks for the token, so its thread ends with the run and not after it."""
    token = CancelToken()
    current.set(token)
    ended = threading.Event()
    count_primes = next(tool for tool in TOOLS if tool.name == "count_primes")

    class Runtime:
        deltas: list[str] = []

        def emit_output_delta(self, delta: str) -> None:
            self.deltas.append(delta)
            token.cancel()

    def count() -> None:
        try:
            count_primes.func(limit=100_000, runtime=Runtime())  # type: ignore[attr-defined]
        finally:
            ended.set()

    with pytest.raises(RunCancelled):
        await asyncio.to_thread(count)
    assert ended.is_set()
    assert len(Runtime.deltas) == 1


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("Yes", "Note kept: water the plants"), ("yes", "Note kept"), ("No", "not kept"), ("", "not kept")],
)
async def test_a_note_is_kept_only_when_the_user_agrees(answer: str, outcome: str) -> None:
    [result] = await results_of(call("keep_note", text="water the plants"), answer)
    assert outcome in result.text


async def test_a_note_is_asked_for_with_its_words() -> None:
    graph = build(ScriptedModel(call("keep_note", text="water the plants")), TOOLS).compile(
        checkpointer=InMemorySaver()
    )
    state = await graph.ainvoke({"messages": [HumanMessage("go")]}, CONFIG)
    [asked] = state["__interrupt__"]
    assert "water the plants" in asked.value["question"]
    assert asked.value["options"] == ["Yes", "No"]


def test_what_is_declared_idempotent_exists_and_asks_nobody() -> None:
    assert {tool.name for tool in TOOLS} > IDEMPOTENT
    assert "keep_note" not in IDEMPOTENT


def test_each_tool_says_what_it_does() -> None:
    for tool in TOOLS:
        assert tool.description.endswith(".")
        assert "runtime" not in tool.tool_call_schema.model_json_schema()["properties"]  # type: ignore[union-attr]
