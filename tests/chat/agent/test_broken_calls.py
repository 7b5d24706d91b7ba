"""A broken call is not run, and the model is told why."""

import asyncio
import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from chat.agent import answers
from chat.agent.graph import TooManyBrokenCalls, build
from tests.chat.agent.turns import ASK, CONFIG, agent, results, run
from tests.fakes import (
    Hold,
    Marks,
    Round,
    Script,
    ScriptedModel,
    ScriptedProvider,
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
    with pytest.raises(TooManyBrokenCalls) as failure:
        await graph.ainvoke(ASK, CONFIG)
    assert failure.value.error_code == "tool"
    assert "could not be read" in failure.value.user_message
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
