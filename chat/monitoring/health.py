"""GET /healthz: the process answers. GET /readyz: it can do its work, or which part of it cannot.

A balancer should send nobody to a process that is not ready; only one that is not alive should be restarted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from django.conf import settings
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from runs import this_process
from runs.foundation.database import in_thread
from runs.lifecycle import liveness

logger = logging.getLogger(__name__)

TIMEOUT = 3.0  # seconds that a part has to answer


@require_safe
@never_cache
async def healthz(request: HttpRequest) -> JsonResponse:
    """Liveness: asks nothing but the event loop."""
    return JsonResponse({"status": "ok"})


@require_safe
@never_cache
async def readyz(request: HttpRequest) -> JsonResponse:
    """Readiness: ``{"status", "parts": {part: "ok" or what is wrong}}``, 503 when something is."""
    names = list(PARTS)
    states = await asyncio.gather(*(_state(name) for name in names))
    parts = dict(zip(names, states, strict=True))
    ready = set(states) == {"ok"}
    return JsonResponse(
        {"status": "ok" if ready else "unavailable", "parts": parts},
        status=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE,
    )


async def _state(part: str) -> str:
    try:
        async with asyncio.timeout(TIMEOUT):
            return await PARTS[part]() or "ok"
    except TimeoutError:
        return f"no answer within {TIMEOUT:g} s"
    # Drivers raise what they like. The log has it; a probe is told by name only, since anybody may ask.
    except Exception as error:  # noqa: BLE001
        logger.warning("Not ready, %s: %r", part, error)
        return type(error).__name__


async def _server() -> str | None:
    if this_process.engine is None:
        return "not started"
    return "leaving" if this_process.engine.leaving else None


async def _database() -> None:
    await in_thread(_select)


def _select() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


async def _channel_layer() -> str | None:
    """A message to ourselves has to arrive."""
    if this_process.engine is None:
        return "not started"
    await this_process.engine.bus.echo()
    return None


async def _worker() -> str | None:
    return None if await in_thread(_beats) else "no heartbeat"


def _beats() -> bool:
    """Whether somebody executes runs."""
    beating = liveness.beating().filter(leaving=False)
    if settings.DISPATCH == "inprocess":
        here = this_process.engine.id if this_process.engine else None
        beating = beating.filter(id=here) if here else beating.none()
    return beating.exists()


PARTS: dict[str, Callable[[], Awaitable[str | None]]] = {
    "server": _server,
    "database": _database,
    "channel_layer": _channel_layer,
    "worker": _worker,
}
