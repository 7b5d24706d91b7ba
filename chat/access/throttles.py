"""How often one user may start a turn, over REST, WebSocket, pages and OpenAI's protocol together."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar

from django.contrib.auth.models import AbstractBaseUser
from rest_framework.throttling import SimpleRateThrottle

from runs.errors import EngineError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Throttled(EngineError):
    """You are starting turns too fast. Wait a moment."""

    code = "throttled"
    status = 429

    def __init__(self, message: str | None = None, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds


class TurnStarts(SimpleRateThrottle):
    """Counts the turns that a user starts, in the cache. Without the cache nothing is refused."""

    scope = "turns"
    rate = "240/min"

    def get_cache_key(self, request: Any, view: Any) -> str:
        return str(self.cache_format % {"scope": self.scope, "ident": request.user.pk})

    def allow_request(self, request: Any, view: Any) -> bool:
        try:
            return bool(super().allow_request(request, view))
        # A cache may raise anything while its server is away.
        except Exception as error:  # noqa: BLE001
            logger.warning("Turn starts are not counted, since the cache does not answer: %r", error)
            return True


def start_turn(
    operation: Callable[Concatenate[AbstractBaseUser, P], T],
    user: AbstractBaseUser,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call the ``operation`` that starts a turn, and count it. Raises Throttled when it is one too many."""
    throttle = TurnStarts()
    if not throttle.allow_request(SimpleNamespace(user=user), None):
        raise Throttled(wait=throttle.wait())
    return operation(user, *args, **kwargs)
