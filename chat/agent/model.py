"""The model behind the default agent, as ``AGENT_MODEL`` names it."""

from functools import cache

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from chat.agent.demo_model import DemoModel

# Seconds. A provider that goes silent is ended by the engine's idle limit, which counts what is progress;
# the client's own limit lies beyond it, since the client would ask a second time behind the engine's back.
CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 600.0
RETRIES = 2  # of a request that was refused or never answered; never after the first token


def chat_model() -> BaseChatModel:
    """The configured model, one object per process. Raises ImproperlyConfigured with a sentence."""
    return _model(
        settings.AGENT_MODEL, settings.OPENAI_BASE_URL, settings.OPENAI_API_KEY, settings.ANTHROPIC_API_KEY
    )


def is_demo() -> bool:
    """Whether the built-in demo model answers."""
    return settings.AGENT_MODEL == "demo"


@cache
def _model(named: str, openai_base_url: str, openai_key: str, anthropic_key: str) -> BaseChatModel:
    provider, _, name = named.partition(":")
    if provider == "demo":
        return DemoModel()
    if provider == "openai":
        return _openai(name, openai_base_url, openai_key)
    if provider == "anthropic":
        return _anthropic(name, anthropic_key)
    raise ImproperlyConfigured(f"AGENT_MODEL is {named!r}, not demo, openai:<model> or anthropic:<model>.")


def _openai(name: str, base_url: str, key: str) -> BaseChatModel:
    try:
        from langchain_openai import ChatOpenAI
        from openai import Timeout
    except ImportError as error:
        raise _missing("openai", "langchain-openai") from error
    if not key and not base_url:
        raise ImproperlyConfigured("AGENT_MODEL names a model of OpenAI, but OPENAI_API_KEY is not set.")
    return ChatOpenAI(
        model=name,
        base_url=base_url or None,
        # A server of one's own often takes no key, but the client wants one.
        api_key=SecretStr(key or "none"),
        streaming=True,
        stream_usage=True,
        stream_chunk_timeout=None,
        timeout=Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
        max_retries=RETRIES,
    )


def _anthropic(name: str, key: str) -> BaseChatModel:
    try:
        from langchain_anthropic import ChatAnthropic
    except ImportError as error:
        raise _missing("anthropic", "langchain-anthropic") from error
    if not key:
        raise ImproperlyConfigured(
            "AGENT_MODEL names a model of Anthropic, but ANTHROPIC_API_KEY is not set."
        )
    return ChatAnthropic(
        model_name=name,
        api_key=SecretStr(key),
        streaming=True,
        stream_usage=True,
        timeout=READ_TIMEOUT,
        stop=None,
        max_retries=RETRIES,
    )


def _missing(provider: str, package: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"AGENT_MODEL names a model of {provider}, whose package {package} is not installed. "
        f"Install the extra: uv sync --extra {provider}."
    )
