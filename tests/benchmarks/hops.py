"""``python -m tests.benchmarks hops [--list]``: our functions on the way of a message and of a cancel.

A message goes from its POST to its one word on a second tab's socket; a cancel from its POST to the settled
cancellation there. Counted is what a real server enters of ``runs/`` and ``chat/``, in all its threads, until
it rests. It happens several times: a function counts if it is entered each time; its fewest calls count.
So what the server does by its timers does not count.

It names no module of ours, so that a copy of this file counts in an older checkout as well.
"""

import asyncio
import contextlib
import dis
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.provider import RemoteProvider, Round, Silence, provider_process, text

ROUNDS = 15
ROOT = Path(__file__).resolve().parent.parent.parent
OURS = (f"{ROOT}/runs/", f"{ROOT}/chat/")
_REST = 0.3  # seconds after which nothing that the request began is still to come
_PATIENCE = 60.0  # seconds for any one answer

Hops = dict[str, int]  # by function, "file:line name", how often it was called


# In the server's process


class Recorder:
    """Counts the calls of our functions in all threads between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[CodeType, int]] = Counter()  # by function and the place where it goes on
        self._is_on = False

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call" and frame.f_code.co_filename.startswith(OURS):
            self._seen[frame.f_code, frame.f_lasti] += 1

    def start(self) -> None:
        self._seen.clear()
        self._is_on = True

    def stop(self) -> Hops:
        self._is_on = False
        places: dict[CodeType, dict[int, int]] = {}
        for (code, place), number in self._seen.copy().items():
            if not code.co_name.startswith(("<listcomp", "<setcomp", "<dictcomp", "<genexpr", "<module")):
                places.setdefault(code, {})[place] = number
        return {_name(code): _calls(code, found) for code, found in places.items()}


def _name(code: CodeType) -> str:
    return f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_firstlineno} {code.co_qualname}"


def _calls(code: CodeType, places: dict[int, int]) -> int:
    """A coroutine that goes on where it waited is entered, but not called."""
    start = next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")
    return sum(number for place, number in places.items() if place <= start)


def serve() -> None:
    """Run a server that takes ``start`` and ``stop`` on its input, and answers the latter with its Hops."""
    recorder = Recorder()

    def obey() -> None:
        for line in sys.stdin:
            hops: Hops = {}
            if line == "start\n":
                recorder.start()
            else:
                hops = recorder.stop()
            print("HOPS", json.dumps(hops), flush=True)

    threading.Thread(target=obey, daemon=True).start()
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    sys.argv = ["manage.py", "quickstart"]
    runpy.run_path(str(ROOT / "manage.py"), run_name="__main__")


# In the client's process


class Server:
    """A running server whose hops are recorded, and a client with its token."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.address = self._told("Address: ").rstrip("/")
        self.headers = {"Authorization": f"Bearer {self._told('Token: ')}"}

    @contextlib.asynccontextmanager
    async def recorded(self, into: list[Hops]) -> AsyncIterator[None]:
        """Append to ``into`` the hops of what is asked for in this block."""
        await asyncio.to_thread(self._ask, "start")
        yield
        await asyncio.sleep(_REST)
        into.append(await asyncio.to_thread(self._ask, "stop"))

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return json.loads(self._told("HOPS "))

    def _told(self, prefix: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(prefix):
                return line.removeprefix(prefix).strip()
        raise RuntimeError("The server ended.")


@contextlib.contextmanager
def server(provider: RemoteProvider, data: str) -> Iterator[Server]:
    """A server on an empty data directory, for the duration of the block."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": provider.base_url,
        "DATA_DIR": data,
        "PORT": "0",
        "SECRET_KEY": "",
        "AGENTS": json.dumps({"http": "tests.benchmarks.agents:build_http"}),
        "DJANGO_SETTINGS_MODULE": "project.settings",
    }
    with (
        (Path(data) / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.hops", "--serve"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield Server(process)
        finally:
            process.kill()


async def measure(server: Server, provider: RemoteProvider) -> tuple[list[Hops], list[Hops]]:
    """The hops of each message and of each cancel."""
    messages: list[Hops] = []
    cancels: list[Hops] = []
    provider.add(Round(text("word"), Silence()), forever=True)
    url = f"{server.address}/api"
    async with httpx.AsyncClient(headers=server.headers, timeout=_PATIENCE) as client:
        for _ in range(ROUNDS + 1):  # the first one warms up
            session = (await client.post(f"{url}/sessions/", json={})).raise_for_status().json()["id"]
            async with _tab(server, session), _tab(server, session) as second:
                async with server.recorded(messages):
                    answer = await client.post(f"{url}/sessions/{session}/runs/", json={"input": "Say it."})
                    run = answer.raise_for_status().json()["id"]
                    await _until(second, _says_a_word)
                async with server.recorded(cancels):
                    (await client.post(f"{url}/runs/{run}/cancel/", json={})).raise_for_status()
                    await _until(second, _is_cancelled, _is_settled)
    return messages[1:], cancels[1:]


def _tab(server: Server, session: str) -> Any:
    url = f"{server.address.replace('http', 'ws', 1)}/ws/sessions/{session}/"
    return connect(url, additional_headers=server.headers)


async def _until(tab: ClientConnection, *wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Read until each of these was true of some frame."""
    missing = set(wanted)
    async with asyncio.timeout(_PATIENCE):
        while missing:
            frame = json.loads(await tab.recv())
            missing = {is_it for is_it in missing if not is_it(frame)}


def _says_a_word(frame: dict[str, Any]) -> bool:
    return frame["type"] == "run.event" and frame["event"]["type"] == "message.delta"


def _is_cancelled(frame: dict[str, Any]) -> bool:
    return frame["type"] == "run.event" and frame["event"]["type"] == "run.cancelled"


def _is_settled(frame: dict[str, Any]) -> bool:
    return '"cancellation_pending": false' in json.dumps(frame)


def every_time(rounds: list[Hops]) -> Hops:
    """What was entered in each round, with the fewest of its calls."""
    always = set.intersection(*(set(hops) for hops in rounds))
    return {name: min(hops[name] for hops in rounds) for name in always}


def main(*, with_names: bool) -> None:
    """Count and print."""
    with (
        tempfile.TemporaryDirectory(prefix="turnkeeper-hops-") as data,
        provider_process() as provider,
        server(provider, data) as running,
    ):
        counted = asyncio.run(measure(running, provider))
    for what, rounds in zip(("message", "cancel"), counted, strict=True):
        hops = every_time(rounds)
        print(f"{what}: {len(hops)} functions, {sum(hops.values())} calls")
        for name in sorted(hops) if with_names else ():
            print(f"  {hops[name]:4} {name}")


if __name__ == "__main__":
    serve() if "--serve" in sys.argv else main(with_names="--list" in sys.argv)
