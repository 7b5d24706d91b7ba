"""What the settings of the engine can say that does not fit together."""

from collections.abc import Sequence
from typing import Any

from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.apps import AppConfig
from django.core import checks
from django.db import connection

from runs.lifecycle import dispatch


@checks.register
def check_dispatch(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Several processes share their database, their queue and their news."""
    if not dispatch.is_shared():
        return []
    found: list[checks.CheckMessage] = []
    if connection.vendor != "postgresql":
        found.append(
            checks.Error(
                "DISPATCH=procrastinate is for several processes, whose data and queue are in PostgreSQL.",
                hint="Set DATABASE_URL, or leave DISPATCH at inprocess.",
                id="runs.E001",
            )
        )
    if isinstance(get_channel_layer(), InMemoryChannelLayer):
        found.append(
            checks.Error(
                "DISPATCH=procrastinate is for several processes, which hear of each other through Redis.",
                hint="Set REDIS_URL, or leave DISPATCH at inprocess.",
                id="runs.E002",
            )
        )
    return found
