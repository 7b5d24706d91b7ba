"""The configured model, and what is said when it cannot be had."""

import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from langchain_core.messages import HumanMessage

from chat.agent.demo_model import DemoModel
from chat.agent.model import chat_model, is_demo
from chat.agent.titles import title_of_turn
from tests.fakes import Failure, Round, Script, ScriptedProvider, Usage, say


def test_the_demo_model_is_the_default(settings: Any) -> None:
    assert is_demo()
    assert isinstance(chat_model(), DemoModel)


def test_there_is_one_model_object_for_each_configuration(settings: Any) -> None:
    settings.AGENT_MODEL, settings.OPENAI_API_KEY = "openai:gpt-x", "one"
    first = chat_model()
    assert chat_model() is first
    settings.OPENAI_API_KEY = "two"
    assert chat_model() is not first


async def test_a_provider_of_one_s_own_needs_an_address_only(settings: Any) -> None:
    script = Script(
        Round(Failure(503, "busy", retry_after=0.01)), say("Hello.", usage=Usage(10, 3)), say("A greeting")
    )
    async with ScriptedProvider(script) as provider:
        settings.AGENT_MODEL, settings.OPENAI_BASE_URL, settings.OPENAI_API_KEY = (
            "openai:mine",
            provider.base_url,
            "",
        )
        assert not is_demo()
        answer = await chat_model().ainvoke([HumanMessage("hi")])
        assert await title_of_turn("hi", "Hello.") == "A greeting"
        assert [seen.outcome for seen in provider.calls] == ["failed", "completed", "completed"]
        assert provider.calls[1].stream
    assert answer.content == "Hello."
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 3


def test_a_model_of_anthropic_is_made_with_its_key(settings: Any) -> None:
    settings.AGENT_MODEL, settings.ANTHROPIC_API_KEY = "anthropic:claude-x", "key"
    model: Any = chat_model()
    assert (model._llm_type, model.model) == ("anthropic-chat", "claude-x")


@pytest.mark.parametrize(
    ("name", "key"), [("openai:gpt-y", "OPENAI_API_KEY"), ("anthropic:claude-y", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_is_said_in_a_sentence(settings: Any, name: str, key: str) -> None:
    settings.AGENT_MODEL, settings.OPENAI_API_KEY, settings.ANTHROPIC_API_KEY = name, "", ""
    settings.OPENAI_BASE_URL = ""
    with pytest.raises(ImproperlyConfigured, match=f"{key} is not set"):
        chat_model()


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_missing_package_is_said_in_a_sentence(
    settings: Any, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.setitem(sys.modules, f"langchain_{provider}", None)
    settings.AGENT_MODEL, settings.OPENAI_API_KEY, settings.ANTHROPIC_API_KEY = f"{provider}:z", "k", "k"
    with pytest.raises(ImproperlyConfigured, match=f"langchain-{provider} is not installed"):
        chat_model()
