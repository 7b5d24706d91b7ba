"""Connections over TCP to a real server process, cut in the ways that only TCP knows."""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from websockets.sync.client import ClientConnection, connect

from tests import ROOT
from tests.polling import PATIENT, until


class Server:
    """The product as a newcomer starts it."""

    def __init__(self, process: subprocess.Popen, log: Path) -> None:
        self.process = process
        self._log = log
        assert process.stdout is not None
        said = dict(process.stdout.readline().strip().split(": ", 1) for _ in range(4))
        self.port = int(said["Address"].rstrip("/").rsplit(":", 1)[1])
        self.headers = {"Authorization": f"Bearer {said['Token']}"}

    @property
    def log(self) -> str:
        return self._log.read_text()

    def sockets(self) -> int:
        """How many sockets the process has open."""
        count = 0
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since
                count += str(descriptor.readlink()).startswith("socket:")
        return count

    def threads(self) -> int:
        """How many threads the process has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def metric(self, name: str) -> float:
        """A figure of the process's metrics."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENT)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENT)
        content = None if body is None else json.dumps(body)
        sent = {"Content-Type": "application/json", **self.headers, **headers}
        connection.request(method, f"/api/{path}", content, sent)
        response = connection.getresponse()
        response.connection = connection  # type: ignore[attr-defined]  # or it would be closed with its variable
        return response

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        response = self.request(method, path, body, **headers)
        content = json.loads(response.read())
        response.connection.close()  # type: ignore[attr-defined]
        return content

    def open_bare(self, session: str) -> socket.socket:
        """A WebSocket with nothing around it."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENT)
        lines = [
            f"GET /ws/sessions/{session}/ HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: {self.headers['Authorization']}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(12) == b"HTTP/1.1 101"
        return connection

    def open(self, session: str) -> ClientConnection:
        return connect(
            f"ws://127.0.0.1:{self.port}/ws/sessions/{session}/",
            additional_headers=self.headers,
            open_timeout=PATIENT,
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("server")
    environment = {**os.environ, "DATA_DIR": str(directory / "data"), "PORT": "0"}
    log = directory / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "quickstart"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            yield Server(process, log)
            process.terminate()


def reset(connection: socket.socket) -> None:
    """Cut a connection with a RST, whoever else holds it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())


def events_of(client: ClientConnection) -> Iterator[dict[str, Any]]:
    while True:
        frame = json.loads(client.recv(timeout=PATIENT))
        if frame["type"] == "run.event":
            yield frame["event"]


def first_event(response: HTTPResponse) -> dict[str, Any]:
    while not (line := response.readline()).startswith(b"data: "):
        assert line
    return json.loads(line.removeprefix(b"data: "))


@pytest.mark.slow
def test_sockets_that_are_reset_leave_nothing_behind_and_harm_nobody(server):
    session = server.call("POST", "sessions/", {})["id"]
    with server.open(session) as good:
        good.send(json.dumps({"type": "turn.start", "request_id": str(uuid4()), "input": "Tell me a story."}))
        events = events_of(good)
        seen = [next(events)]
        before = server.sockets()
        for _ in range(4):
            doomed = [server.open_bare(session) for _ in range(20)]
            seen += [next(events) for _ in range(3)]
            for client in doomed:
                reset(client)
        server.call("POST", f"sessions/{session}/cancel/", {})  # or it would go on for a while
        while seen[-1]["type"] != "run.cancelled":
            seen.append(next(events))
        until(lambda: server.sockets() <= before)
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_three_hundred_streams_that_are_reset_leave_nothing_behind(server):
    def drop_a_hundred():
        run = server.call("POST", f"sessions/{session}/runs/", {"input": "Tell me a story."})["id"]
        for _ in range(100):
            response = server.request("GET", f"runs/{run}/events/", Accept="text/event-stream")
            assert first_event(response)["seq"] == 1
            reset(response.connection.sock)
        assert server.call("GET", f"runs/{run}/")["cancellation"] is None
        settled = server.call("POST", f"runs/{run}/cancel/", {"wait": 60})
        assert settled["outcome"] in ("cancelled", "already_finished")
        until(lambda: server.metric("turnkeeper_streams") == server.metric("turnkeeper_followers") == 0)

    session = server.call("POST", "sessions/", {})["id"]
    drop_a_hundred()
    before = server.sockets(), server.threads(), server.metric("process_resident_memory_bytes")
    drop_a_hundred()
    drop_a_hundred()
    until(lambda: server.sockets() <= before[0])
    assert server.threads() <= before[1] + 10  # pools may still grow to their size
    assert server.metric("process_resident_memory_bytes") < before[2] + 20 * 2**20
    assert "Traceback" not in server.log


def test_on_disconnect_cancel_takes_effect_when_the_connection_is_reset(server):
    session = server.call("POST", "sessions/", {})["id"]
    body = {"input": "Tell me a story.", "on_disconnect": "cancel"}
    response = server.request("POST", f"sessions/{session}/runs/", body, Accept="text/event-stream")
    run = first_event(response)["run"]
    reset(response.connection.sock)
    until(lambda: server.call("GET", f"runs/{run}/")["status"] == "cancelled")
    assert server.call("GET", f"runs/{run}/")["cancellation"]["source"] == "disconnect"


def test_a_body_that_comes_in_chunks_is_read(server):
    connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENT)
    headers = {"Content-Type": "application/json", **server.headers}
    chunks = (piece.encode() for piece in ('{"title": ', '"in pieces"', "}"))
    connection.request("POST", "/api/sessions/", chunks, headers, encode_chunked=True)
    assert json.loads(connection.getresponse().read())["title"] == "in pieces"
    connection.close()
