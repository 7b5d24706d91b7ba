"""A cluster as ``make cluster`` starts it, and its processes one by one."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.processes.server import PATIENT, Data, Server
from tests.provider import RemoteProvider


class Cluster(Server):
    """``manage.py cluster`` on one data folder. Asked as a Server is, it answers by turns from both."""

    COMMAND = "cluster"
    START = 2 * PATIENT  # four processes, one of them before the others

    def __init__(self, data: Path, provider: RemoteProvider, **environment: str) -> None:
        super().__init__(data, provider, **environment)
        self._clients: list[httpx.Client] = []

    def close(self) -> None:
        processes = self.processes() if self.process.poll() is None else []
        super().close()
        psutil.wait_procs(processes, PATIENT)

    def leave(self) -> tuple[int, float]:
        """SIGTERM; the exit code and the seconds it took. ``left`` are those of its processes that stayed."""
        processes = self.processes()
        code, seconds = super().leave()
        self.left = psutil.wait_procs(processes, 0)[1]
        return code, seconds

    # Its processes

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def doing(self, word: str) -> list[psutil.Process]:
        """The direct children whose program or command of manage.py is ``word``."""
        return [child for child in psutil.Process(self.process.pid).children() if word in _words(child)]

    def webs(self) -> list[psutil.Process]:
        return sorted(self.doing("quickstart") + self.doing("serve"), key=lambda one: one.pid)

    def at(self, web: psutil.Process) -> httpx.Client:
        """A client of this web process alone, until ``leave_webs``."""
        listening = [one for one in web.net_connections() if one.status == psutil.CONN_LISTEN]
        headers = {"Authorization": self.api.headers["Authorization"], "Accept": "application/json"}
        address = f"http://127.0.0.1:{listening[0].laddr.port}/api/"
        client = httpx.Client(base_url=address, headers=headers, timeout=PATIENT)
        self._clients.append(client)
        return client

    def leave_webs(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def workers(self) -> dict[str, psutil.Process]:
        """The processes of the workers that have signed on, by their ids."""
        living = {one.pid: one for one in self.doing("work")}
        rows = self.get("workers/")["results"]
        return {row["id"]: living[row["pid"]] for row in rows if row["pid"] in living}

    def whole(self) -> None:
        """Wait until everybody is there."""

        def answers() -> bool:
            try:
                return len({self.served_by() for _ in range(4)}) == 2 and len(self.workers()) == 2
            except httpx.HTTPError:
                return False

        self.until(answers, "all processes being there")

    def served_by(self) -> str:
        """The name of the process that answers next."""
        answer = httpx.get(self.api.base_url.join("sessions/"), headers=self.api.headers, timeout=PATIENT)
        answer.raise_for_status()
        return answer.headers["X-Served-By"]

    def worker_of(self, run: str) -> psutil.Process:
        """The process that executes a run."""
        started = next(event for event in self.events(run) if event["type"] == "run.started")
        return self.workers()[started["data"]["worker"]]


def _words(process: psutil.Process) -> list[str]:
    try:
        program, *arguments = process.cmdline() or [""]
        return [Path(program.partition(" ")[0]).name, *arguments]  # Redis writes its own words there
    except psutil.Error:  # it has ended meanwhile
        return []


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def stream(client: httpx.Client, run: str, after: int = 0) -> Iterator[Data]:
    """The events of a run's stream, as they come, until it ends or breaks."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    try:
        with client.stream("GET", f"runs/{run}/events/", headers=headers) as answer:
            if answer.status_code == 204:
                return
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])
    except httpx.TransportError:
        return


@contextmanager
def socket_of(client: httpx.Client, session: str) -> Iterator[Connection]:
    """A socket that follows a session, by the same process as ``client``; its first frame is taken."""
    address = str(client.base_url).replace("http://", "ws://").replace("/api/", f"/ws/sessions/{session}/")
    headers = {"Authorization": client.headers["Authorization"]}
    with connect(address, additional_headers=headers, max_size=None) as socket:
        assert json.loads(socket.recv(PATIENT))["type"] == "session.state_changed"
        yield socket


def frames_until(socket: Connection, is_last: Callable[[Data], bool]) -> list[Data]:
    """The frames of a socket up to the first for which ``is_last`` is true."""
    deadline = time.monotonic() + PATIENT
    frames: list[Data] = []
    while not frames or not is_last(frames[-1]):
        frames.append(json.loads(socket.recv(max(0.0, deadline - time.monotonic()))))
    return frames
