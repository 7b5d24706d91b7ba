"""The default agent: tools, broken calls and empty answers."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, NodeCancelledError
from langgraph.types import Command

from chat.agent import answers
from chat.agent.demo_model import DemoModel
from chat.agent.graph import EmptyAnswer, TooManyBrokenCalls, build, build_graph
from chat.agent.tools import TOOLS
from runs.agents import policy_of
from runs.stopping.cancel_token import CancelToken, current
from tests.fakes import (
    Hold,
    Marks,
    Round,
    Script,
    ScriptedModel,
    ScriptedProvider,
    Usage,
    call,
    calls,
    say,
    served_model,
    spelled,
    text,
    tools,
    unsendable,
    words,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
ASK: Any = {"messages": [HumanMessage("go")]}


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "marks")


def agent(model: Any, marks: Marks) -> Any:
    return build(model, tools(marks)).compile(checkpointer=InMemorySaver())


async def run(model: Any, marks: Marks) -> list[Any]:
    state = await agent(model, marks).ainvoke(ASK, CONFIG)
    messages: list[Any] = state["messages"]
    assert unsendable(messages) is None
    return messages


def results(messages: list[Any]) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]


async def test_the_agent_answers(marks: Marks) -> None:
    messages = await run(ScriptedModel(say("Hello there.")), marks)
    assert [message.type for message in messages] == ["human", "ai"]
    assert messages[1].content == "Hello there."
    assert all(message.id for message in messages)


async def test_the_prompt_is_sent_and_not_stored(marks: Marks) -> None:
    model = ScriptedModel(say("Hello."))
    messages = await run(model, marks)
    assert model.calls[0].messages[0]["role"] == "system"
    assert "system" not in {message.type for message in messages}


async def test_calls_of_one_message_run_side_by_side_and_answer_in_their_order(marks: Marks) -> None:
    model = ScriptedModel(
        calls(("slow_async", {"seconds": 0.2}), ("mark", {"x": "1"}), ("mark", {"x": "2"})), say("done")
    )
    messages = await run(model, marks)
    assert [result.content for result in results(messages)] == ["awaited 0.2 s", "marked 1", "marked 2"]
    assert marks.read()[-1] == "slow_async ended"
    assert [message["role"] for message in model.calls[1].messages[2:]] == [
        "assistant",
        "tool",
        "tool",
        "tool",
    ]


async def test_finished_calls_survive_a_cancel_of_their_siblings(marks: Marks) -> None:
    graph = agent(
        ScriptedModel(calls(("mark", {"x": "1"}), ("slow_async", {"seconds": 60})), say("done")), marks
    )
    turn = asyncio.create_task(graph.ainvoke(ASK, CONFIG))
    await marks.seen("slow_async started")
    async with asyncio.timeout(10):
        while not results((await graph.aget_state(CONFIG)).values.get("messages", [])):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    state = await graph.aget_state(CONFIG)
    assert [result.content for result in results(state.values["messages"])] == ["marked 1"]


async def test_a_tool_that_raises_tells_the_model(marks: Marks) -> None:
    model = ScriptedModel(call("boom", message="out of paper"), say("sorry"))
    [result] = results(await run(model, marks))
    assert result.status == "error"
    assert "out of paper" in result.text


async def test_a_tool_called_with_wrong_fields_tells_the_model(marks: Marks) -> None:
    [result] = results(await run(ScriptedModel(call("slow_async", seconds="many"), say("sorry")), marks))
    assert result.status == "error"
    assert "seconds" in result.text


async def test_a_tool_that_cancels_itself_has_failed_and_the_turn_goes_on(marks: Marks) -> None:
    messages = await run(ScriptedModel(call("cancelling"), say("sorry")), marks)
    assert results(messages)[0].status == "error"
    assert messages[-1].content == "sorry"


async def test_a_tool_that_is_cancelled_with_its_run_is_no_failed_tool(marks: Marks) -> None:
    token = CancelToken()
    current.set(token)
    model = ScriptedModel(call("cancelling"), say("sorry"))
    graph = agent(model, marks)
    token.cancel()
    with pytest.raises((asyncio.CancelledError, NodeCancelledError)):
        await graph.ainvoke(ASK, CONFIG)
    assert len(model.calls) == 1
    assert results((await graph.aget_state(CONFIG)).values["messages"]) == []


async def test_a_tool_asks_and_gets_the_answer(marks: Marks) -> None:
    graph = agent(ScriptedModel(call("ask", question="Sure?"), say("fine")), marks)
    state = await graph.ainvoke(ASK, CONFIG)
    [asked] = state["__interrupt__"]
    assert asked.value == {"question": "Sure?", "options": ["Yes", "No"]}
    state = await graph.ainvoke(Command(resume={asked.id: "Yes"}), CONFIG)
    assert results(state["messages"])[0].content == "The user answered Yes."


BROKEN = {
    "no JSON": ("mark", '{"x": '),
    "cut in a string": ("mark", '{"x": "1'),
    "cut so that it looks complete": ("mark", '{"x": "1"'),
    "a list": ("mark", '["1"]'),
    "a number": ("mark", "1"),
    "null": ("mark", "null"),
    "unknown tool": ("no_such_tool", {"x": "1"}),
    "a name that no provider takes": ("no such tool!", {"x": "1"}),
    "no name": ("", {"x": "1"}),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_call_is_not_run_and_the_model_tries_again(kind: str, marks: Marks) -> None:
    model = ScriptedModel(calls(BROKEN[kind]), call("mark", x="2"), say("done"))
    messages = await run(model, marks)
    asked, result = messages[1], messages[2]
    assert asked.invalid_tool_calls == []
    assert [item["args"] for item in asked.tool_calls] == [{}]
    assert (result.tool_call_id, result.status) == (asked.tool_calls[0]["id"], "error")
    assert "was not run" in result.content
    assert model.calls[1].messages[-1]["content"] == result.content
    assert marks.read() == ["2"]
    assert messages[-1].content == "done"


UNFIT = {
    "an integer of 97 bits": ('{"x": 123456789012345678901234567890}', "more than 64 bits"),
    "the first integer of 65 bits": (f'{{"x": {2**64}}}', "more than 64 bits"),
    "the first negative one": (f'{{"x": {-(2**63) - 1}}}', "more than 64 bits"),
    "an integer that Python does not convert": ('{"x": ' + "9" * 5_000 + "}", "more than 64 bits"),
    "a huge integer inside": ('{"x": [{"y": 123456789012345678901234567890}]}', "more than 64 bits"),
    "infinity": ('{"x": Infinity}', "Infinity, which is no number of JSON"),
    "minus infinity": ('{"x": -Infinity}', "-Infinity, which is no number of JSON"),
    "not a number": ('{"x": NaN}', "NaN, which is no number of JSON"),
    "a float that overflows": ('{"x": 1e999}', "too large: '1e999'"),
    "51 levels": ('{"x": ' + "[" * 50 + "]" * 50 + "}", "deeper than 50 levels"),
    "300 levels": ('{"x": ' * 300 + "1" + "}" * 300, "deeper than 50 levels"),
    "100,000 levels": ('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "deeper than 50 levels"),
}


@pytest.mark.parametrize("kind", UNFIT)
async def test_arguments_that_cannot_be_stored_or_sent_are_a_broken_call(
    kind: str, marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, reason = UNFIT[kind]
    script = Script(
        calls(("mark", {"x": "1"}), ("mark", arguments)), call("mark", x="2"), say("done"), say("again")
    )
    async with ScriptedProvider(script) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        graph = agent(served_model(), marks)
        await graph.ainvoke(ASK, CONFIG)
        messages = (await graph.ainvoke(ASK, CONFIG))["messages"]
        assert [seen.outcome for seen in provider.calls] == ["completed"] * 4
    asked, broken = messages[1], results(messages)[0]
    assert [item["args"] for item in asked.tool_calls] == [{"x": "1"}, {}]
    assert (broken.tool_call_id, broken.status) == (asked.tool_calls[1]["id"], "error")
    assert reason in broken.text
    assert len(broken.text) < 400
    assert marks.read() == ["1", "2"]
    assert [message.content for message in messages if message.type == "ai"][-2:] == ["done", "again"]


@pytest.mark.parametrize(
    "arguments",
    [
        f'{{"x": {2**64 - 1}}}',
        f'{{"x": {-(2**63)}}}',
        '{"x": 1e300}',
        '{"x": ' + "[" * 49 + "1" + "]" * 49 + "}",
    ],
)
async def test_arguments_at_the_limit_reach_the_tool_as_they_are(arguments: str, marks: Marks) -> None:
    @tool
    def echo(x: Any) -> str:
        """Say it again."""
        return json.dumps({"x": x})

    graph = build(ScriptedModel(calls(("echo", arguments)), say("done")), [echo])
    messages = (await graph.compile(checkpointer=InMemorySaver()).ainvoke(ASK, CONFIG))["messages"]
    assert json.loads(results(messages)[0].text) == messages[1].tool_calls[0]["args"] == json.loads(arguments)


async def test_good_siblings_of_a_broken_call_run(marks: Marks) -> None:
    model = ScriptedModel(calls(("mark", {"x": "1"}), ("mark", "{x"), ("mark", {"x": "3"})), say("done"))
    messages = await run(model, marks)
    assert sorted(marks.read()) == ["1", "3"]
    assert {result.status for result in results(messages)} == {"success", "error"}
    assert {result.tool_call_id for result in results(messages)} == {c["id"] for c in messages[1].tool_calls}


async def test_three_broken_rounds_in_a_row_fail_with_a_sentence(marks: Marks) -> None:
    model = ScriptedModel(*(calls(("mark", "{x")) for _ in range(4)))
    graph = agent(model, marks)
    with pytest.raises(TooManyBrokenCalls, match="could not be read") as failure:
        await graph.ainvoke(ASK, CONFIG)
    assert failure.value.error_code == "tool"
    assert len(model.calls) == 3
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    assert unsendable(messages) is None
    assert len(results(messages)) == 3


async def test_broken_rounds_are_counted_in_a_row_only(marks: Marks) -> None:
    broken = [calls(("mark", "{x")), calls(("mark", "{x"))]
    model = ScriptedModel(*broken, call("mark", x="1"), *broken, call("mark", x="2"), say("done"))
    assert (await run(model, marks))[-1].content == "done"
    assert marks.read() == ["1", "2"]


async def test_the_same_over_http_with_a_strict_provider(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(
        calls(("mark", {"x": "1"}), ("mark", '{"x": "2'), ("no_such_tool", {})),
        call("mark", x="4"),
        say("done"),
    )
    async with ScriptedProvider(script) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        messages = await run(served_model(), marks)
        assert [seen.outcome for seen in provider.calls] == ["completed"] * 3
        assert set(provider.calls[0].tools) == {known.name for known in tools(marks)}
    assert messages[-1].content == "done"
    assert marks.read() == ["1", "4"]


async def test_calls_without_id_or_with_one_that_was_used_get_ids_of_their_own(marks: Marks) -> None:
    again = Round(
        spelled("mark", {"x": "1"}, id="call_0"),
        spelled("mark", {"x": "2"}, id="call_0", index=1),
        fresh=False,
    )
    messages = await run(ScriptedModel(again, again, say("done")), marks)
    ids = [result.tool_call_id for result in results(messages)]
    assert len(set(ids)) == 4
    assert ids[0] == "call_0"
    assert sorted(marks.read()) == ["1", "1", "2", "2"]


async def test_a_call_cut_while_it_is_spelled_out_is_never_run(marks: Marks) -> None:
    spelling = spelled("mark", {"x": "12345678"}, names=2, pieces=6)
    for cut in range(1, len(spelling)):
        model = ScriptedModel(Round(words("Let me see."), spelling[:cut], Hold("cut")))
        graph = agent(model, marks)
        turn = asyncio.create_task(graph.ainvoke(ASK, CONFIG))
        await model.script.gate("cut").reached()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        messages = (await graph.aget_state(CONFIG)).values["messages"]
        assert [message.type for message in messages] == ["human"]
    assert marks.read() == []


async def test_an_answer_that_ends_in_the_middle_of_a_call_does_not_run_it(marks: Marks) -> None:
    """A provider that reaches its token limit ends the stream there, with a call half spelled."""
    spelling = spelled("mark", {"x": "12345678"}, names=2, pieces=6)
    for cut in range(1, len(spelling)):
        messages = await run(ScriptedModel(Round(text("Let me see."), spelling[:cut]), say("done")), marks)
        assert messages[-1].content == "done"
    # What is left of the name alone names no tool, and a name without arguments lacks the field.
    assert marks.read() == []


@pytest.mark.parametrize("empty", [Round(), say(" "), Round(text("\n\n"))])
async def test_an_empty_answer_is_asked_for_again(empty: Round, marks: Marks) -> None:
    model = ScriptedModel(empty, say("Here I am."))
    messages = await run(model, marks)
    assert [message.content for message in messages] == ["go", "Here I am."]
    assert len(model.calls) == 2


async def test_two_empty_answers_are_a_failure_with_a_sentence(marks: Marks) -> None:
    with pytest.raises(EmptyAnswer, match="empty answer") as failure:
        await run(ScriptedModel(Round(), Round()), marks)
    assert failure.value.error_code == "provider"


async def test_a_model_that_never_stops_calling_meets_the_step_limit(marks: Marks) -> None:
    graph = agent(ScriptedModel(script=Script(default=call("mark", x="1"))), marks)
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(ASK, {**CONFIG, "recursion_limit": 7})
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    assert len(results(messages)) == len(marks.read()) == 3


async def test_blocks_of_a_provider_do_not_contradict_repaired_calls(marks: Marks) -> None:
    """Some providers repeat the calls among the blocks of the content."""
    whole = AIMessageChunk(
        content=[
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "a", "name": "mark", "input": "{x"},
        ],
        tool_call_chunks=[{"name": "mark", "args": "{x", "id": "a", "index": 0, "type": "tool_call_chunk"}],
        id="message",
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )
    answer = answers.read(whole, {"mark"}, set())
    assert isinstance(answer.message, AIMessage)
    assert (answer.message.content, answer.message.id) == ("Let me see.", "message")
    assert answer.message.usage_metadata == whole.usage_metadata


@pytest.mark.parametrize(
    ("arguments", "reason", "runs"),
    [("", "length", 0), ("", "max_tokens", 0), ("", "stop", 1), ("{}", "length", 1)],
)
def test_a_call_that_the_token_limit_cut_before_its_arguments_is_broken(
    arguments: str, reason: str, runs: int
) -> None:
    """A tool that needs no arguments would otherwise run without those the model was about to give."""
    whole = AIMessageChunk(
        content="",
        tool_call_chunks=[
            {"name": "mark", "args": arguments, "id": "a", "index": 0, "type": "tool_call_chunk"}
        ],
        response_metadata={"finish_reason": reason},
    )
    answer = answers.read(whole, {"mark"}, set())
    assert len(answer.errors) == 1 - runs


async def test_the_configured_agent_uses_the_demo_model_and_says_what_it_is(marks: Marks) -> None:
    policy = policy_of("assistant")
    assert policy.title
    assert "calculate" in policy.idempotent_tools
    assert "keep_note" not in policy.idempotent_tools
    graph = build_graph().compile()
    assert {"llm_call", "tool_node"} <= set(graph.nodes)


async def test_the_demo_model_drives_the_agent_s_own_tools() -> None:
    graph = build(DemoModel(words_per_second=10_000), TOOLS).compile(checkpointer=InMemorySaver())
    state = await graph.ainvoke(
        {"messages": [HumanMessage("Calculate 6 * 7, count primes up to 100 and wait 0.01 seconds")]}, CONFIG
    )
    assert unsendable(state["messages"]) is None
    answer = state["messages"][-1].content
    for piece in ("**42**", "25 prime numbers", "Waited for 0.01 seconds"):
        assert piece in answer


UNCLEAN = "a\x00b\ud800c\ud83d\ude00"
CLEAN = "a\ufffdb\ufffdc\U0001f600"


def answering(content: Any) -> Any:
    """A tool that answers so whatever it is asked, and remembers what it was asked."""
    asked: list[Any] = []

    @tool(response_format="content_and_artifact")
    def echo(x: Any) -> Any:
        """Answer."""
        asked.append(x)
        return content, UNCLEAN

    return echo, asked


@pytest.mark.parametrize(
    ("content", "stored"),
    [
        (UNCLEAN, CLEAN),
        ([{"type": "text", "text": UNCLEAN, "id": "b"}], [{"type": "text", "text": CLEAN, "id": "b"}]),
    ],
)
async def test_results_of_tools_are_stored_and_sent_with_what_is_unsendable_replaced(
    content: Any, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, _ = answering(content)
    script = Script(call("echo", x="1"), say("done"), say("again"))
    async with ScriptedProvider(script) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
        graph = build(served_model(), [echo]).compile(checkpointer=InMemorySaver())
        await graph.ainvoke(ASK, CONFIG)
        messages = (await graph.ainvoke(ASK, CONFIG))["messages"]
        assert [seen.outcome for seen in provider.calls] == ["completed"] * 3
        assert CLEAN in json.dumps(provider.calls[2].messages, ensure_ascii=False)
    [result] = results(messages)
    assert (result.content, result.status, result.name) == (stored, "success", "echo")
    assert result.tool_call_id == messages[1].tool_calls[0]["id"]
    assert messages[-1].content == "again"


async def test_the_words_of_a_tool_that_fails_are_cleaned(marks: Marks) -> None:
    [result] = results(await run(ScriptedModel(call("boom", message=UNCLEAN), say("done")), marks))
    assert (result.text, result.status) == (f"The tool failed: {CLEAN}", "error")


async def test_messages_in_commands_of_a_tool_are_cleaned() -> None:
    @tool
    def command(tool_call_id: Annotated[str, InjectedToolCallId], several: bool) -> Any:
        """Answer with a command, alone or in a list."""
        answer = Command(update={"messages": [ToolMessage(UNCLEAN, tool_call_id=tool_call_id)]})
        return [answer] if several else answer

    model = ScriptedModel(calls(("command", {"several": True}), ("command", {"several": False})), say("done"))
    graph = build(model, [command]).compile(checkpointer=InMemorySaver())
    messages = (await graph.ainvoke(ASK, CONFIG))["messages"]
    assert [result.content for result in results(messages)] == [CLEAN, CLEAN]
    assert unsendable(messages) is None


async def test_text_and_arguments_of_the_model_are_the_same_clean_words_everywhere() -> None:
    echo, asked = answering("fine")
    arguments = {"x": {UNCLEAN: [UNCLEAN, 1, None, True]}}
    usage = Usage(100, 20)
    model = ScriptedModel(
        Round(
            text("a\x00b\ud800c\ud83d"), text("\ude00"), spelled("echo", arguments, id="call_a"), usage=usage
        ),
        say(UNCLEAN),
    )
    graph = build(model, [echo]).compile(checkpointer=InMemorySaver())
    _, said, _, last = (await graph.ainvoke(ASK, CONFIG))["messages"]
    assert (said.content, last.content) == (CLEAN, CLEAN)
    assert said.tool_calls[0]["args"] == {"x": {CLEAN: [CLEAN, 1, None, True]}}
    assert said.tool_calls[0]["id"] == model.calls[1].messages[-1]["tool_call_id"]
    assert asked == [{CLEAN: [CLEAN, 1, None, True]}]
    assert model.calls[1].messages[2]["content"] == CLEAN
    assert said.id
    assert (said.usage_metadata["input_tokens"], said.usage_metadata["output_tokens"]) == (100, 20)
    assert said.response_metadata["finish_reason"] == "stop"


async def test_a_tool_whose_name_is_unclean_is_a_broken_call(marks: Marks) -> None:
    messages = await run(ScriptedModel(calls((f"mark{UNCLEAN}", {"x": "1"})), say("done")), marks)
    json.dumps([message.model_dump() for message in messages], ensure_ascii=False).encode()
    assert messages[1].tool_calls[0]["name"] == results(messages)[0].name == "unknown"
    assert marks.read() == []


def test_blocks_of_the_model_are_cleaned_and_keep_what_they_hold() -> None:
    whole = AIMessageChunk(
        content=[{"type": "text", "text": UNCLEAN, "index": 0}, {"type": "reasoning", "reasoning": UNCLEAN}],
        additional_kwargs={"reasoning_content": UNCLEAN},
        response_metadata={"finish_reason": "stop"},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        id="message",
    )
    message = answers.read(whole, set(), set()).message
    assert message.content == [
        {"type": "text", "text": CLEAN, "index": 0},
        {"type": "reasoning", "reasoning": CLEAN},
    ]
    assert message.additional_kwargs == {"reasoning_content": CLEAN}
    assert (message.id, message.usage_metadata) == ("message", whole.usage_metadata)
    assert message.response_metadata["finish_reason"] == "stop"


def test_the_id_of_a_call_is_cleaned_in_the_call_and_in_its_result() -> None:
    whole = AIMessageChunk(
        content="",
        tool_call_chunks=[
            {"name": "mark", "args": "{", "id": UNCLEAN, "index": 0, "type": "tool_call_chunk"}
        ],
    )
    answer = answers.read(whole, {"mark"}, set())
    assert answer.message.tool_calls[0]["id"] == answer.errors[0].tool_call_id == CLEAN
