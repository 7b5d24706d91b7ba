"""The product spread over processes: how long a cancel takes from one to another."""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from websockets.sync.client import connect

from tests.processes.deployment import deployment
from tests.processes.turns import AGENTS
from tests.provider import RemoteProvider, Round, Silence, numbered

_PATIENCE = 60.0  # seconds for each step


async def stops_across_processes(provider: RemoteProvider, count: int) -> list[float]:
    """Seconds from each cancel to its closed stream, measured at the provider.

    Each turn is started at one web process, executed by a worker, and cancelled at the other web process.
    """
    provider.clear()
    provider.add(Round(numbered(5), Silence()), forever=True)
    with tempfile.TemporaryDirectory(prefix="turnkeeper-bench-") as folder:
        async with deployment(Path(folder), provider, AGENTS) as cluster:
            first, second = (slot.address for slot in cluster.webs)
            return await asyncio.to_thread(_stops, provider, first, second, cluster.tokens[0], count)


def _stops(provider: RemoteProvider, starting: str, cancelling: str, token: str, count: int) -> list[float]:
    headers = {"Authorization": f"Bearer {token}"}
    found = []
    with httpx.Client(base_url=starting + "api/", headers=headers, timeout=_PATIENCE) as http:
        for number in range(1, count + 1):
            session = http.post("sessions/", json={}).raise_for_status().json()["id"]
            url = f"{cancelling.replace('http', 'ws', 1)}ws/sessions/{session}/"
            with connect(url, additional_headers=headers, compression=None) as socket:
                socket.recv(_PATIENCE)
                http.post(f"sessions/{session}/runs/", json={"input": "Go on for ever."}).raise_for_status()
                _call(provider, number, lambda call: call["chunks"] == 5)
                frame = {"type": "agent.cancel", "request_id": str(uuid4()), "session_id": session}
                sent = time.monotonic()
                socket.send(json.dumps(frame))
                found.append(_call(provider, number, lambda call: call["closed_at"])["closed_at"] - sent)
                while json.loads(socket.recv(_PATIENCE)).get("request_id") != frame["request_id"]:
                    pass  # settled, before the next one begins
    return found


def _call(provider: RemoteProvider, number: int, has_come_so_far: Any) -> dict[str, Any]:
    """The call of this number, once it has."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        calls: list[dict[str, Any]] = provider.ledger()["calls"]
        if len(calls) == number and has_come_so_far(calls[-1]):
            return calls[-1]
        if time.monotonic() > deadline:
            raise RuntimeError(f"The provider waited in vain for call {number}.")
        time.sleep(0.02)
