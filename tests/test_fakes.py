"""The fakes keep their promises; every test of the engine stands on them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from tests.fakes import (
    SHAPES,
    Disconnect,
    Failure,
    Hold,
    Marks,
    ProviderFailure,
    Round,
    Script,
    ScriptedModel,
    ScriptedProvider,
    Silence,
    Usage,
    call,
    calls,
    fault_in,
    numbered,
    provider_process,
    say,
    spelled,
    sync_graph,
    text,
    tools,
    unsendable,
    words,
)

pytestmark = pytest.mark.timeout(60)

ASK = [HumanMessage("hello there")]
USAGE = Usage(prompt=100, completion=20, cached=40)


def client(base_url: str, **options: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"streaming": True, "stream_usage": True, "max_retries": 0} | options
    return ChatOpenAI(model="scripted", base_url=base_url, api_key="none", **settings)  # type: ignore[arg-type]


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider() as provider:
        yield provider


@pytest.fixture(params=["http", "in process"])
async def scripted(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    """A model and the side that has its script and ledger, of both kinds."""
    if request.param == "in process":
        model = ScriptedModel()
        yield model, model
    else:
        async with ScriptedProvider() as provider:
            yield client(provider.base_url), provider


async def collect(model: Any, messages: Any = ASK) -> AIMessageChunk:
    whole: Any = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


async def test_text_is_streamed_in_the_chunks_of_the_script(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(say("one two three"))
    assert [chunk.content async for chunk in model.astream(ASK) if chunk.content] == ["one", " two", " three"]
    [seen] = side.calls
    assert (seen.completed, seen.chunks, seen.messages) == (
        True,
        3,
        [{"role": "user", "content": "hello there"}],
    )
    assert seen.completion_tokens == 3
    assert seen.prompt_tokens == 2


@pytest.mark.parametrize("style", ["last", "cumulative", "delta", "none"])
async def test_usage_is_reported_in_four_styles(scripted: tuple[Any, Any], style: Any) -> None:
    model, side = scripted
    side.script.add(Round(numbered(5), usage=USAGE, style=style))
    reported = [c.usage_metadata async for c in model.astream(ASK) if c.usage_metadata is not None]
    completion = [usage["output_tokens"] for usage in reported]
    prompt = [usage["input_tokens"] for usage in reported]
    expected = {
        "last": ([20], [100]),
        "cumulative": ([4, 8, 12, 16, 20], [100] * 5),
        "delta": ([4] * 5, [100, 0, 0, 0, 0]),
        "none": ([], []),
    }
    assert (completion, prompt) == expected[style]
    assert (side.ledger.prompt_tokens, side.ledger.completion_tokens) == (100, 20)
    assert side.calls[0].cached_tokens == 40


async def test_a_tool_call_is_spelled_out_piece_by_piece(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(Round(text("Let me see."), spelled("mark", {"x": "1"}, id="c1", names=2, pieces=4)))
    chunks = [chunk async for chunk in model.astream(ASK)]
    pieces = [piece for chunk in chunks for piece in chunk.tool_call_chunks]
    assert [piece["id"] for piece in pieces if piece["id"]] == ["c1"]
    assert [piece["name"] for piece in pieces if piece["name"]] == ["ma", "rk"]
    assert len([piece for piece in pieces if piece["args"]]) == 4


async def test_several_calls_in_one_message_are_understood(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(calls(("mark", {"x": "1"}), ("mark", {"x": "2"}), ("mark", "{broken")))
    message = await collect(model)
    # LangChain completes broken JSON by guessing, so what was really sent is only in the chunks.
    assert [piece["args"] for piece in message.tool_call_chunks] == ['{"x": "1"}', '{"x": "2"}', "{broken"]


async def test_a_round_that_is_played_again_has_fresh_call_ids(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.default = call("mark", x="1")
    first, second = (await collect(model)).tool_calls[0], (await collect(model)).tool_calls[0]
    assert first["id"] != second["id"]


async def test_a_gate_holds_the_model_until_it_is_opened(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(Round(text("one"), Hold("middle"), text(" two")))
    answering = asyncio.create_task(collect(model))
    await side.script.gate("middle").reached()
    assert not answering.done()
    assert side.calls[0].outcome == "open"
    side.script.gate("middle").open()
    assert (await answering).content == "one two"


async def test_the_ledger_sees_promptly_that_the_client_left(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(Round(words("one two"), Silence(), usage=Usage(50, 90)))
    answering = asyncio.create_task(collect(model))
    await side.ledger.streamed(2)
    cancelled_at = time.monotonic()
    answering.cancel()
    await side.ledger.ended(1)
    [seen] = side.calls
    assert seen.outcome == "closed"
    assert not seen.completed
    assert seen.closed_at - cancelled_at < 1
    assert (seen.prompt_tokens, seen.completion_tokens) == (50, 2)


async def test_rounds_are_chosen_by_marker_then_by_function_then_by_queue(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(say("queued"))
    side.script.add(say("for alice"), marker="#alice")
    side.script.respond = lambda messages: say("computed") if len(messages) > 1 else None

    async def answer(*messages: Any) -> Any:
        return (await collect(model, list(messages))).content

    assert await answer(HumanMessage("hi #alice")) == "for alice"
    assert await answer(HumanMessage("hi")) == "queued"
    assert await answer(HumanMessage("hi"), AIMessage("yes"), HumanMessage("hi")) == "computed"
    assert await answer(HumanMessage("hi #alice")) == "All right."
    assert side.script.left == 0


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_provider_refuses_with_a_status(provider: ScriptedProvider, status: int) -> None:
    provider.script.add(Round(Failure(status, "no luck")))
    with pytest.raises(openai.APIStatusError, match="no luck") as failure:
        await collect(client(provider.base_url))
    assert failure.value.status_code == status
    assert provider.calls[0].outcome == "failed"
    assert provider.ledger.prompt_tokens == 0


async def test_a_retried_call_is_two_calls_in_the_ledger(provider: ScriptedProvider) -> None:
    provider.script.add(Round(Failure(429, "slow down", retry_after=0.01)), say("now"))
    assert (await collect(client(provider.base_url, max_retries=1))).content == "now"
    assert [seen.outcome for seen in provider.calls] == ["failed", "completed"]


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_breaks_off_in_mid_stream(provider: ScriptedProvider, reset: bool) -> None:
    provider.script.add(Round(words("one two"), Disconnect(reset)))
    with pytest.raises(Exception, match=r"(?i)peer|closed|reset|read|connection") as failure:
        await collect(client(provider.base_url))
    assert not isinstance(failure.value, TimeoutError)
    assert provider.calls[0].outcome == "failed"
    assert provider.calls[0].completion_tokens == 2


async def test_an_error_in_mid_stream_is_an_error_for_the_client(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    side.script.add(Round(words("one two"), Failure(500, "overheated")))
    with pytest.raises((openai.APIError, ProviderFailure), match="overheated"):
        await collect(model)
    assert side.calls[0].outcome == "failed"


async def test_keep_alive_comments_are_sent_and_are_no_chunks(provider: ScriptedProvider) -> None:
    provider.script.add(Round(text("one"), Silence(keep_alive=0.01)))
    reader, writer = await asyncio.open_connection("127.0.0.1", provider.port)
    body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    for _ in range(3):
        await reader.readuntil(b": keep-alive\n\n")
    writer.close()
    await provider.ledger.ended(1)
    assert provider.calls[0].chunks == 1
    assert provider.calls[0].outcome == "closed"


async def test_an_answer_can_come_in_one_piece(provider: ScriptedProvider) -> None:
    provider.script.add(Round(text("Let me see."), spelled("mark", {"x": "1"}), usage=USAGE))
    answer = await client(provider.base_url, streaming=False).ainvoke(ASK)
    assert answer.content == "Let me see."
    assert answer.tool_calls[0]["args"] == {"x": "1"}
    assert answer.usage_metadata
    assert answer.usage_metadata["output_tokens"] == 20
    assert provider.calls[0].completed
    assert not provider.calls[0].stream


ASKED = {
    "role": "assistant",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "mark", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "mark", "arguments": "{}"}},
    ],
}
USER = {"role": "user", "content": "hi"}


def result(call_id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": "done"}


def asking(**function: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    "history",
    [
        [USER],
        [USER, ASKED, result("a"), result("b")],
        [USER, ASKED, result("b"), result("a"), {"role": "assistant", "content": "so"}, USER],
    ],
)
async def test_a_strict_provider_takes_a_well_formed_history(history: list[dict[str, Any]]) -> None:
    assert fault_in(history, user_after_tool=False) is None


@pytest.mark.parametrize(
    "history",
    [
        [],
        [USER, ASKED],
        [USER, ASKED, result("a")],
        [USER, ASKED, result("a"), USER, result("b")],
        [USER, ASKED, result("a"), result("a"), result("b")],
        [USER, ASKED, result("a"), result("b"), result("b")],
        [USER, result("a")],
        [USER, ASKED, result("a"), result("c")],
        [USER, ASKED, result("a"), result("b"), USER],
        [USER, asking(arguments="{}"), result("a")],
        [USER, asking(name="", arguments="{}"), result("a")],
        [USER, asking(name="mark", arguments='{"x": '), result("a")],
        [USER, asking(name="mark", arguments="[1]"), result("a")],
        [USER, asking(name="mark"), result("a")],
        [USER, {"role": "assistant", "content": None}],
        [USER, {"role": "assistant", "content": ""}, USER],
    ],
)
async def test_a_strict_provider_refuses_a_malformed_history(history: list[dict[str, Any]]) -> None:
    assert fault_in(history, user_after_tool=False)


async def test_a_refusal_reaches_the_client_as_400(scripted: tuple[Any, Any]) -> None:
    model, side = scripted
    orphan = AIMessage("", tool_calls=[{"id": "a", "name": "mark", "args": {}}])
    with pytest.raises((openai.BadRequestError, ProviderFailure), match="must be followed by tool messages"):
        await collect(model, [HumanMessage("hi"), orphan, HumanMessage("again")])
    assert side.calls[0].outcome == "refused"
    assert side.ledger.prompt_tokens == 0
    assert unsendable([HumanMessage("hi"), orphan])


async def test_a_user_message_behind_a_result_is_refused_only_when_asked_for(
    scripted: tuple[Any, Any],
) -> None:
    model, side = scripted
    orphan = AIMessage("", tool_calls=[{"id": "a", "name": "mark", "args": {}}])
    history = [HumanMessage("hi"), orphan, ToolMessage("done", tool_call_id="a"), HumanMessage("again")]
    assert (await collect(model, history)).content == "All right."
    side.strict_user_after_tool = True
    with pytest.raises((openai.BadRequestError, ProviderFailure), match="cannot follow"):
        await collect(model, history)


async def test_a_provider_serves_from_a_thread_to_code_without_a_loop() -> None:
    def use() -> None:
        script = Script(Round(text("one"), Hold("middle"), text(" two")))
        with ScriptedProvider(script).in_thread() as provider:
            script.gate("middle").open()
            assert client(provider.base_url).invoke(ASK).content == "one two"
            provider.ledger.wait_ended(1)

    await asyncio.to_thread(use)


async def test_a_provider_in_a_process_is_driven_from_outside() -> None:
    def use() -> None:
        with provider_process("--user-after-tool-refused") as remote:
            remote.add(Round(text("one"), Hold("middle"), text(" two"), usage=USAGE), marker="#a")
            remote.options(default=say("otherwise"))
            remote.open("middle")
            model = client(remote.base_url)
            assert model.invoke("hello #a").content == "one two"
            assert model.invoke("hello").content == "otherwise"
            ledger = remote.ledger()
            assert [seen["completed"] for seen in ledger["calls"]] == [True, True]
            assert ledger["calls"][0]["completion_tokens"] == 20
            assert ledger["left"] == 0
            assert remote.gate("middle") == {"arrivals": 1, "opened": True}
            remote.clear()
            assert remote.ledger()["calls"] == []

    await asyncio.to_thread(use)


@pytest.mark.parametrize("shape", [*SHAPES, "sync"])
async def test_each_graph_runs_its_tools_and_answers(shape: str, tmp_path: Path) -> None:
    build: Callable[..., Any] = sync_graph if shape == "sync" else SHAPES[shape]
    marks = Marks(tmp_path / "marks")
    model = ScriptedModel(calls(("mark", {"x": "1"}), ("mark", {"x": "2"})), call("boom"), say("done"))
    graph = build(model, tools(marks)).compile()
    state = await graph.ainvoke({"messages": [HumanMessage("go")]})
    assert sorted(marks.read()) == ["1", "2"]
    assert state["messages"][-1].content == "done"
    assert unsendable(state["messages"]) is None
    assert len(model.calls) == 3
    assert "boom" in model.calls[2].messages[-1]["content"]
