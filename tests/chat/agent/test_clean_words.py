"""What cannot be stored or sent is replaced, whoever said it."""

import json
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from chat.agent import answers
from chat.agent.graph import build
from tests.chat.agent.turns import ASK, CONFIG, results, run
from tests.fakes import (
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
    unsendable,
)

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
