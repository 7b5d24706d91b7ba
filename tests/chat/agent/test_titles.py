"""Titles by the model are bounded, clean, and never in the way."""

import asyncio
from typing import Any

import pytest

from chat.agent import titles
from chat.agent.titles import generate_title, title_of_turn
from tests.fakes import Failure, Round, ScriptedModel, Silence, say, text


async def title(answer: str) -> str | None:
    return await generate_title(ScriptedModel(Round(text(answer))), "How do I water plants?", "With water.")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Watering plants", "Watering plants"),
        ('"Watering plants."', "Watering plants"),
        ("**Watering plants**\n\nThis title says it all.", "Watering plants"),
        ("# Watering plants", "Watering plants"),
        ("\n\n  Watering \t plants  \n", "Watering plants"),
        ("Watering\x00\u202e plants", "Watering plants"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),  # text, and shown as text
        ("\u201eBlumen gie\u00dfen\u201c", "Blumen gie\u00dfen"),
        ("", None),
        ('" ** "', None),
    ],
)
async def test_a_title_is_one_clean_line(answer: str, expected: str | None) -> None:
    assert await title(answer) == expected


@pytest.mark.parametrize("answer", ["word " * 100, "w" * 500, "a title of words and " + "w" * 500])
async def test_a_title_is_at_most_sixty_characters(answer: str) -> None:
    found = await title(answer)
    assert found is not None
    assert 0 < len(found) <= 60
    assert found.endswith("\u2026")


async def test_the_model_reads_a_bounded_excerpt_of_both_sides() -> None:
    model = ScriptedModel(say("Long talk"))
    await generate_title(model, "u" * 100_000, "a" * 100_000)
    content = model.calls[0].messages[-1]["content"]
    assert "User: uuu" in content
    assert "Assistant: aaa" in content
    assert len(content) < 5_000


async def test_a_model_that_fails_gives_no_title() -> None:
    assert await generate_title(ScriptedModel(Round(Failure(500))), "hi", "hello") is None


async def test_a_model_that_is_silent_gives_no_title(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titles, "TIMEOUT", 0.05)
    assert await generate_title(ScriptedModel(Round(Silence())), "hi", "hello") is None


async def test_a_cancel_of_the_title_is_not_swallowed() -> None:
    model = ScriptedModel(Round(Silence()))
    writing = asyncio.create_task(generate_title(model, "hi", "hello"))
    await model.ledger.called(1)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_the_demo_model_writes_no_titles(settings: Any) -> None:
    settings.AGENT_MODEL = "demo"
    assert await title_of_turn("hi", "hello") is None
