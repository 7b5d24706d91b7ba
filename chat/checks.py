"""What settings can say that does not fit together, or not into this installation."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

_PACKAGES = {"openai": "langchain_openai", "anthropic": "langchain_anthropic"}


@checks.register
def check_model(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """The model's provider is installed and has a key."""
    provider = settings.AGENT_MODEL.partition(":")[0]
    found: list[checks.CheckMessage] = []
    if provider in _PACKAGES and find_spec(_PACKAGES[provider]) is None:
        found.append(
            checks.Error(
                f"AGENT_MODEL names {provider}, whose package is not installed.",
                hint=f"Install requirements-{provider}.txt.",
                id="chat.E001",
            )
        )
    # A server of one's own that speaks the OpenAI protocol often takes no key.
    if provider == "openai" and not settings.OPENAI_API_KEY and not settings.OPENAI_BASE_URL:
        found.append(checks.Warning("AGENT_MODEL needs OPENAI_API_KEY; its turns will fail.", id="chat.W001"))
    if provider == "anthropic" and not settings.ANTHROPIC_API_KEY:
        found.append(
            checks.Warning("AGENT_MODEL needs ANTHROPIC_API_KEY; its turns will fail.", id="chat.W001")
        )
    return found
