"""``python -m tests.processes.latency``: from a cancel to the closed stream, measured at the provider.

Once in one process, and once across processes: the turn was started at one web process, is executed by a
worker, and is cancelled at the other web process. Figures in milliseconds.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import httpx
from websockets.sync.client import connect

from tests.processes.deployment import deployment
from tests.processes.server import Server
from tests.processes.turns import AGENTS
from tests.provider import Round, Silence, numbered, provider_process

_PATIENCE = 60.0  # seconds for each step


def measure(provider, starting, cancelling, token, count):
    """Seconds of each of ``count`` cancels, from the frame that is sent to the end of the LLM call.

    ``starting`` and ``cancelling`` are the addresses of the servers that do that.
    """
    headers = {"Authorization": f"Bearer {token}"}
    provider.options(default=Round(numbered(5), Silence()))
    found = []
    with httpx.Client(base_url=starting + "api/", headers=headers, timeout=_PATIENCE) as http:
        for _ in range(count):
            provider.clear()
            session = http.post("sessions/", json={}).raise_for_status().json()["id"]
            url = f"{cancelling.replace('http', 'ws', 1)}ws/sessions/{session}/"
            with connect(url, additional_headers=headers, compression=None) as socket:
                socket.recv(_PATIENCE)
                http.post(f"sessions/{session}/runs/", json={"input": "Go on for ever."}).raise_for_status()
                _until(provider, lambda call: call["chunks"] == 5)
                frame = {"type": "agent.cancel", "request_id": str(uuid4()), "session_id": session}
                sent = time.monotonic()
                socket.send(json.dumps(frame))
                found.append(_until(provider, lambda call: call["closed_at"])["closed_at"] - sent)
                while json.loads(socket.recv(_PATIENCE)).get("request_id") != frame["request_id"]:
                    pass  # settled, before the next one begins
    return found


def _until(provider, answer):
    deadline = time.monotonic() + _PATIENCE
    while not (calls := provider.ledger()["calls"]) or not answer(calls[-1]):
        assert time.monotonic() < deadline, "the provider waits in vain"
        time.sleep(0.02)
    return calls[-1]


def in_one_process(folder, provider, count):
    (folder / "data").mkdir()
    server = Server(folder / "data", provider, AGENTS=json.dumps(AGENTS))
    server.start()
    try:
        address = str(server.api.base_url).removesuffix("api/")
        token = server.api.headers["Authorization"].removeprefix("Bearer ")
        return measure(provider, address, address, token, count)
    finally:
        server.close()


async def across_processes(folder, provider, count):
    async with deployment(folder, provider, AGENTS) as cluster:
        first, second = (slot.address for slot in cluster.webs)
        return await asyncio.to_thread(measure, provider, first, second, cluster.tokens[0], count)


def main(count):
    with provider_process() as provider:
        for measured in (in_one_process, across_processes):
            with tempfile.TemporaryDirectory(prefix="turnkeeper-latency-") as folder:
                found = measured(Path(folder), provider, count)
                if asyncio.iscoroutine(found):
                    found = asyncio.run(found)
            median, p95 = statistics.median(found), statistics.quantiles(found, n=20)[-1]
            print(
                f"{measured.__name__}: median {median * 1000:.1f}, p95 {p95 * 1000:.1f},"
                f" slowest {max(found) * 1000:.1f} of {count}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.processes.latency")
    parser.add_argument("--cancels", type=int, default=40)
    main(parser.parse_args().cancels)
