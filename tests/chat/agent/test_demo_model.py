"""The demo model understands a few words, offline, and streams at a human speed."""

import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from chat.agent.demo_model import DemoModel
from chat.agent.tools import TOOLS
from chat.rendering import render_markdown

FAST = 100_000


async def chunks(wish: str, *behind: Any, words_per_second: float = FAST) -> list[AIMessageChunk]:
    model = DemoModel(words_per_second=words_per_second).bind_tools(TOOLS)
    found = [chunk async for chunk in model.astream([HumanMessage(wish), *behind])]
    assert all(isinstance(chunk, AIMessageChunk) for chunk in found)
    return found  # type: ignore[return-value]


async def reply(wish: str, *behind: Any) -> AIMessageChunk:
    first, *rest = await chunks(wish, *behind)
    return first + rest


async def asked(wish: str) -> list[tuple[str, dict[str, Any]]]:
    return [(call["name"], call["args"]) for call in (await reply(wish)).tool_calls]


@pytest.mark.parametrize(
    ("wish", "calls"),
    [
        ("What is 12 * (3 + 4)?", [("calculate", {"expression": "12 * (3 + 4)"})]),
        ("how much is 12 times 7", [("calculate", {"expression": "12 * 7"})]),
        ("sqrt(2) * 3, please", [("calculate", {"expression": "sqrt(2) * 3"})]),
        ("Please wait 5 seconds", [("wait", {"seconds": 5})]),
        ("Wait for 1.5 seconds.", [("wait", {"seconds": 1.5})]),
        ("wait 10 minutes", [("wait", {"seconds": 100})]),
        ("wait a moment", [("wait", {"seconds": 5})]),
        ("Count primes up to 1,000,000", [("count_primes", {"limit": 1_000_000})]),
        ("do something blocking", [("count_primes", {"limit": 500_000})]),
        ("Count primes below 99999999999999", [("count_primes", {"limit": 2_000_000})]),
        ("Note: water the plants", [("keep_note", {"text": "water the plants"})]),
        ("ask me something", [("keep_note", {"text": "ask me something"})]),
        (
            "Wait 5 seconds, count primes up to 200000 and calculate 2 ** 64",
            [
                ("wait", {"seconds": 5}),
                ("count_primes", {"limit": 200_000}),
                ("calculate", {"expression": "2 ** 64"}),
            ],
        ),
        ("Hello", []),
        ("What happened on 2026-11-29?", []),
        ("I have 3 cats", []),
        ("Tell me a story", []),
        ("", []),
    ],
)
async def test_it_picks_tools_by_what_the_user_writes(wish: str, calls: list[Any]) -> None:
    assert await asked(wish) == calls


async def test_its_calls_are_streamed_in_pieces_behind_some_words() -> None:
    stream = await chunks("What is 12 * (3 + 4)?")
    pieces = [piece for chunk in stream for piece in chunk.tool_call_chunks]
    assert len(pieces) > 3
    assert stream[0].content
    assert not stream[0].tool_call_chunks


async def test_its_calls_have_new_ids_in_each_turn() -> None:
    ids = set()
    history: list[Any] = []
    for _ in range(3):
        history.append(HumanMessage("wait 1 second and wait 2 seconds"))
        first, *rest = [
            chunk async for chunk in DemoModel(words_per_second=FAST).bind_tools(TOOLS).astream(history)
        ]
        message = first + rest
        ids |= {call["id"] for call in message.tool_calls}
        history.append(message)
    assert len(ids) == 6


async def test_it_calls_no_tool_that_it_was_not_given() -> None:
    stream = [chunk async for chunk in DemoModel(words_per_second=FAST).astream("What is 1 + 1?")]
    assert not any(chunk.tool_call_chunks for chunk in stream)  # type: ignore[attr-defined]


async def test_it_uses_the_results_of_its_tools() -> None:
    calls = AIMessage(
        "", tool_calls=[{"id": i, "name": n, "args": {}} for i, n in (("a", "calculate"), ("b", "wait"))]
    )
    results = [
        ToolMessage("84", tool_call_id="a", name="calculate"),
        ToolMessage("Stopped by the user.", tool_call_id="b", name="wait", status="error"),
    ]
    one = await reply("What is 12 * 7?", calls, results[0])
    assert one.content == "The result is **84**."
    assert not one.tool_calls
    both = str((await reply("12 * 7 and wait", calls, *results)).content)
    assert "- The result is **84**." in both
    assert "did **not** work: Stopped by the user." in both


async def test_results_of_an_earlier_turn_do_not_answer_this_one() -> None:
    calls = AIMessage("", tool_calls=[{"id": "a", "name": "calculate", "args": {}}])
    earlier = [calls, ToolMessage("84", tool_call_id="a", name="calculate"), AIMessage("The result is 84.")]
    assert (await reply("What is 12 * 7?", *earlier, HumanMessage("wait 3 seconds"))).tool_calls[0][
        "name"
    ] == "wait"


async def test_it_says_what_it_is_and_what_one_can_try() -> None:
    text = str((await reply("Hello")).content)
    for piece in (
        "Hello.",
        "demo model",
        "AGENT_MODEL=openai:",
        "OPENAI_BASE_URL",
        "Wait 20 seconds",
        "long story",
    ):
        assert piece in text
    html = render_markdown(text)
    for element in ("<strong>", "<ul>", "<pre>", "<code>"):
        assert element in html


async def test_what_it_proposes_works() -> None:
    proposals = [
        line.split('"')[1]
        for line in str((await reply("?")).content).splitlines()
        if line.startswith('- **"')
    ]
    assert len(proposals) == 6
    assert [len(await asked(proposal)) for proposal in proposals] == [1, 1, 1, 1, 3, 0]
    assert "The end." in str((await reply(proposals[-1])).content)


async def test_a_story_lasts_at_least_fifteen_seconds() -> None:
    stream = await chunks("Tell me a long story about two cats.")
    assert len(stream) / DemoModel().words_per_second >= 15
    text = "".join(str(chunk.content) for chunk in stream)
    assert text.count("two cats") == 2
    assert "{" not in text


async def test_it_speaks_at_the_speed_it_is_set_to() -> None:
    started = time.monotonic()
    stream = await chunks("1 + 1", words_per_second=50)
    assert time.monotonic() - started >= len(stream) / 50 * 0.9
    assert 20 <= DemoModel().words_per_second <= 30


async def test_the_same_words_get_the_same_answer() -> None:
    assert (await reply("Hello")).content == (await reply("Hello")).content


async def test_it_reports_its_usage_once_at_the_end() -> None:
    stream = await chunks("one two three")
    assert [chunk.usage_metadata is not None for chunk in stream[-2:]] == [False, True]
    assert sum(chunk.usage_metadata is not None for chunk in stream) == 1
    usage = stream[-1].usage_metadata
    assert usage is not None
    assert usage["input_tokens"] == 3
    assert usage["output_tokens"] == len(stream) - 1


def test_it_can_be_called_without_a_loop() -> None:
    assert "42" in str(
        DemoModel(words_per_second=FAST)
        .invoke([HumanMessage("6 * 7"), AIMessage(""), ToolMessage("42", tool_call_id="a", name="calculate")])
        .content
    )


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "pattern", [" ", "1 ", "(", "1+", "note ", "wait ", "sqrt", "- ", "1 + ", "prime 1,"]
)
async def test_hostile_text_does_not_hold_it_up(pattern: str) -> None:
    started = time.monotonic()
    await chunks(pattern * (100_000 // len(pattern)))
    assert time.monotonic() - started < 5
