"""LLM calls and tokens are counted once each, whatever way the provider reports them."""

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from runs.states import EventType, RunStatus
from runs.translation.translator import Translator
from runs.translation.usage import LLMMeter, Tokens, UsageReports, output_length
from tests.provider import (
    Failure,
    Hold,
    Round,
    Script,
    ScriptedProvider,
    Usage,
    call,
    numbered,
    say,
    words,
)
from tests.provider.script import Style

settings.load_profile("ci")  # the same examples each time

STYLES: list[Style] = ["last", "cumulative", "delta"]


def total_of(*reports: tuple[int, int], with_text: bool = True) -> Tokens | None:
    collected = UsageReports()
    for report in reports:
        collected.add(Tokens(*report), with_text=with_text)
    return collected.total


# What a series of reports means


def test_no_report_is_unknown_and_not_zero():
    assert total_of() is None


def test_a_single_report_is_the_total():
    assert total_of((100, 20)) == (100, 20)


def test_running_totals_are_not_added_up():
    assert total_of((100, 0), (100, 0), (100, 1), (100, 2), (100, 2)) == (100, 2)


def test_deltas_are_added_up():
    assert total_of((100, 1), (0, 2), (0, 0), (0, 3)) == (100, 6)


def test_input_on_the_first_chunk_and_output_on_the_last_make_one_total():
    assert total_of((100, 0), (0, 50)) == (100, 50)


def test_a_running_total_whose_input_comes_last_is_the_last_report():
    assert total_of((0, 1), (0, 2), (100, 3)) == (100, 3)


def test_equal_deltas_with_text_are_added_up_and_an_equal_report_without_text_is_a_repetition():
    assert total_of((25, 1), (25, 1), (25, 1), (25, 1)) == (100, 4)
    assert total_of((100, 20), (100, 20), with_text=False) == (100, 20)


@given(prompt=st.integers(1, 10_000), outputs=st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_both_styles_give_the_ledgers_total(prompt: int, outputs: list[int]):
    ledger = (prompt, sum(outputs))
    deltas = [(prompt if number == 0 else 0, output) for number, output in enumerate(outputs)]
    assert total_of(*deltas) == ledger
    running = [(prompt, sum(outputs[: number + 1])) for number in range(len(outputs))]
    if len(set(running)) > 1 or len(running) == 1:  # a total that never grows although text comes is none
        assert total_of(*running) == ledger


# The meter


class Counts(Counter[str]):
    def add(self, **deltas: int) -> None:
        self.update(deltas)


def ended(message: AIMessage | None = None, llm_output: dict[str, Any] | None = None) -> LLMResult:
    generation = ChatGeneration(message=message or AIMessage(""))
    return LLMResult(generations=[[generation]], llm_output=llm_output)


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}


def test_an_open_call_is_carried_as_an_estimate_and_taken_back_at_its_end():
    counts = Counts()
    meter = LLMMeter(counts.add)
    open_call = meter.start(uuid4(), 40)
    for _ in range(20):
        meter.chunk(open_call, 4, None)
    assert counts == {"llm_calls": 1, "open_input_tokens": 40, "open_output_tokens": 16}
    meter.chunk(open_call, 0, usage(50, 19))
    meter.end(open_call, ended())
    assert (counts["open_input_tokens"], counts["open_output_tokens"]) == (0, 0)
    assert (counts["input_tokens"], counts["output_tokens"]) == (50, 19)
    assert "tokens_estimated" not in counts
    assert len(meter.open) == 0


def test_the_whole_message_does_not_count_again_what_the_stream_has_reported():
    counts = Counts()
    meter = LLMMeter(counts.add)
    open_call = meter.start(uuid4(), 40)
    for output in (1, 2, 3):
        meter.chunk(open_call, 4, usage(50, output))
    summed_up_by_langchain = AIMessage("text", usage_metadata=usage(150, 6))  # type: ignore[arg-type]
    meter.end(open_call, ended(summed_up_by_langchain))
    assert open_call.usage == (50, 3)
    assert counts["input_tokens"] == 50


@pytest.mark.parametrize(
    "result",
    [
        ended(AIMessage("text", usage_metadata=usage(7, 3))),  # type: ignore[arg-type]
        ended(AIMessage("text"), {"token_usage": {"prompt_tokens": 7, "completion_tokens": 3}}),
    ],
)
def test_a_call_that_was_not_streamed_counts_what_its_message_says(result: LLMResult):
    counts = Counts()
    meter = LLMMeter(counts.add)
    meter.end(meter.start(uuid4(), 40), result)
    assert (counts["input_tokens"], counts["output_tokens"]) == (7, 3)
    assert "tokens_estimated" not in counts


def test_a_provider_that_says_nothing_is_estimated_and_marked():
    counts = Counts()
    meter = LLMMeter(counts.add)
    meter.end(meter.start(uuid4(), 40), ended(AIMessage("x" * 40)))
    assert (counts["input_tokens"], counts["output_tokens"]) == (40, 10)
    assert counts["tokens_estimated"] == 1


def test_a_call_that_breaks_off_keeps_what_was_reported_and_estimates_the_rest():
    counts = Counts()
    meter = LLMMeter(counts.add)
    open_call = meter.start(uuid4(), 40)
    meter.chunk(open_call, 4, usage(55, 1))
    meter.chunk(open_call, 8, None)
    meter.fail(open_call)
    assert (counts["input_tokens"], counts["output_tokens"]) == (55, 3)
    assert counts["tokens_estimated"] == 1


def test_closing_fails_every_open_call_once():
    counts = Counts()
    meter = LLMMeter(counts.add)
    for _ in range(3):
        meter.start(uuid4(), 5)
    meter.close()
    meter.close()
    assert counts["llm_calls"] == 3
    assert counts["input_tokens"] == 15
    assert counts["open_input_tokens"] == 0


def test_the_quietest_open_call_tells_how_long_a_provider_has_been_silent():
    meter = LLMMeter(Counts().add)
    silent, busy = meter.start(uuid4(), 1), meter.start(uuid4(), 1)
    silent_since = silent.active_at
    meter.chunk(busy, 1, None)
    assert meter.last_activity == silent_since
    meter.fail(silent)
    assert meter.last_activity == busy.active_at


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["chunk", "report", "end", "fail"]), st.integers(0, 90)),
        max_size=40,
    )
)
def test_estimates_of_open_calls_always_return_to_nothing(steps: list[tuple[int, str, int]]):
    counts = Counts()
    meter = LLMMeter(counts.add)
    ids = [UUID(int=number) for number in range(3)]
    started = 0
    for number, step, size in steps:
        open_call = meter.open.get(ids[number])
        if open_call is None:
            open_call = meter.start(ids[number], 10)
            started += 1
        if step == "chunk":
            meter.chunk(open_call, size, None)
        elif step == "report":
            meter.chunk(open_call, size, usage(size, size))
        elif step == "end":
            meter.end(open_call, ended())
        else:
            meter.fail(open_call)
        assert counts["open_input_tokens"] >= 0
        assert counts["open_output_tokens"] >= 0
    meter.close()
    assert counts["llm_calls"] == started
    assert counts["open_input_tokens"] == counts["open_output_tokens"] == 0


def test_the_length_of_output_takes_in_reasoning_and_calls_but_no_call_twice():
    piece = {"type": "tool_call_chunk", "id": "c", "name": "echo", "args": '{"a"', "index": 0}
    assert output_length(AIMessageChunk("four")) == 4
    assert output_length(AIMessageChunk("", tool_call_chunks=[piece])) == 8  # type: ignore[list-item]
    blocks = [{"type": "thinking", "thinking": "hmm"}, {"type": "text", "text": "yes"}, "!"]
    assert output_length(AIMessageChunk(blocks)) == 7
    spelled = [{"type": "input_json_delta", "partial_json": '{"a"'}]
    assert output_length(AIMessageChunk(spelled, tool_call_chunks=[piece])) == 8  # type: ignore[arg-type,list-item]


# Against a provider


class Totals:
    """An emitter that keeps the statistics, and the usage of each message."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.usages: list[dict[str, int] | None] = []
        self.deltas = 0
        self.has_20_deltas = asyncio.Event()

    def keep(self, call_id: str, dumped: bytes, /) -> None:
        """Not of interest here."""

    def emit(self, event: EventType, data: dict[str, Any], /) -> None:
        self.deltas += event is EventType.MESSAGE_DELTA
        if self.deltas >= 20:
            self.has_20_deltas.set()
        if event is EventType.MESSAGE_COMPLETED:
            self.usages.append(data["usage"])

    def count(self, **deltas: int) -> None:
        self.counts.update(deltas)

    @property
    def tokens(self) -> tuple[int, int]:
        return self.counts["input_tokens"], self.counts["output_tokens"]


@tool
async def mark(number: int) -> str:
    """Make a mark."""
    return f"marked {number}"


def graph_on(provider: ScriptedProvider, retry: RetryPolicy | None = None, **options: Any) -> Any:
    model = ChatOpenAI(
        model="scripted",
        base_url=provider.base_url,
        api_key="none",
        max_retries=0,
        **{"stream_usage": True, **options},
    ).bind_tools([mark])

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def route(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(MessagesState)
    graph.add_node("agent", call_model, retry_policy=retry).add_node("tools", ToolNode([mark]))
    graph.add_edge(START, "agent").add_edge("tools", "agent")
    graph.add_conditional_edges("agent", route, ["tools", END])
    return graph.compile()


async def drive(graph: Any, translator: Translator) -> None:
    stream = graph.astream(
        {"messages": [HumanMessage("hello there")]},
        {"callbacks": [translator.handler]},
        stream_mode=["messages", "updates", "tools", "custom"],
        subgraphs=True,
    )
    async for chunk in stream:
        translator.feed(*chunk)


def three_rounds(style: Style) -> Script:
    return Script(
        call("mark", number=1, usage=Usage(100, 20), style=style),
        call("mark", number=2, usage=Usage(150, 30, cached=40), style=style),
        say("It is all done now.", usage=Usage(190, 40), style=style),
    )


@pytest.mark.parametrize("style", STYLES)
async def test_three_styles_of_reporting_give_the_ledgers_totals(style: Style):
    totals = Totals()
    async with ScriptedProvider(three_rounds(style)) as provider:
        translator = Translator(totals, run_id="run")
        await drive(graph_on(provider), translator)
        translator.close(RunStatus.COMPLETED)
        billed = (
            sum(c.prompt_tokens for c in provider.calls),
            sum(c.completion_tokens for c in provider.calls),
        )
    assert totals.tokens == billed == (440, 90)
    assert totals.counts["llm_calls"] == 3
    assert "tokens_estimated" not in totals.counts
    assert totals.usages[0] == {"input_tokens": 100, "output_tokens": 20}


@pytest.mark.parametrize("options", [{}, {"disable_streaming": True}])
async def test_without_a_report_the_tokens_are_estimated_and_marked(options: dict[str, Any]):
    totals = Totals()
    async with ScriptedProvider(three_rounds("none")) as provider:
        translator = Translator(totals, run_id="run")
        await drive(graph_on(provider, **options), translator)
        translator.close(RunStatus.COMPLETED)
    assert totals.counts["llm_calls"] == 3
    assert min(totals.tokens) > 0
    assert totals.counts["tokens_estimated"] == 3
    assert totals.usages == [None, None, None]


async def test_a_model_that_does_not_stream_is_counted_from_its_message():
    totals = Totals()
    async with ScriptedProvider(three_rounds("last")) as provider:
        translator = Translator(totals, run_id="run")
        await drive(graph_on(provider, disable_streaming=True), translator)
        translator.close(RunStatus.COMPLETED)
    assert totals.tokens == (440, 90)
    assert "tokens_estimated" not in totals.counts


async def test_a_round_that_is_repeated_counts_as_two_calls():
    broken = Round(words("Half of an"), Failure(status=500), usage=Usage(100, 20))
    totals = Totals()
    async with ScriptedProvider(Script(broken, say("Whole.", usage=Usage(100, 20)))) as provider:
        translator = Translator(totals, run_id="run")
        policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=Exception)
        await drive(graph_on(provider, policy), translator)
        translator.close(RunStatus.COMPLETED)
        assert len(provider.calls) == 2
    assert totals.counts["llm_calls"] == 2
    assert totals.counts["tokens_estimated"] == 1
    assert totals.usages == [None, {"input_tokens": 100, "output_tokens": 20}]


async def test_a_cancelled_turn_keeps_its_closed_rounds_and_estimates_the_open_one():
    script = Script(
        call("mark", number=1, usage=Usage(100, 20)),
        call("mark", number=2, usage=Usage(150, 30)),
        Round(numbered(20), Hold("mid"), numbered(20), usage=Usage(180, 40)),
    )
    totals = Totals()
    async with ScriptedProvider(script) as provider:
        translator = Translator(totals, run_id="run")
        task = asyncio.create_task(drive(graph_on(provider), translator))
        await asyncio.wait_for(totals.has_20_deltas.wait(), 10)
        assert len(translator.messages.meter.open) == 1
        assert totals.tokens == (250, 50)
        assert totals.counts["open_input_tokens"] > 0
        assert totals.counts["open_output_tokens"] > 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        translator.close(RunStatus.CANCELLED)
    assert totals.counts["llm_calls"] == 3
    assert totals.counts["tokens_estimated"] == 1
    assert totals.counts["input_tokens"] > 250
    assert 50 + 10 <= totals.counts["output_tokens"] <= 50 + 40
    assert totals.counts["open_input_tokens"] == totals.counts["open_output_tokens"] == 0
    before = dict(totals.counts)
    translator.close(RunStatus.CANCELLED)
    assert totals.counts == before
