"""What the README tells those who write clients: its tables are the code's, and its programs run."""

import ast
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from chat.access.throttles import Throttled
from chat.api.errors import CODES
from chat.api.schema import document
from chat.websocket import frames
from runs import errors
from runs.errors import EngineError
from runs.live import follow
from tests import ROOT
from tests.chat.server.test_commands import introduction, run  # noqa: F401  run is a fixture
from tests.docs.test_docs import section

PATIENT = 90


def table(title: str, number: int) -> list[list[str]]:
    """The cells of a section's table, the first being number 0, without its head."""
    tables = re.findall(r"(?:^\|.*\n)+", section(title), re.MULTILINE)
    rows = [line.strip("|").split("|") for line in tables[number].splitlines()[2:]]
    return [[cell.strip() for cell in row] for row in rows]


def first_words(title: str, number: int) -> list[str]:
    return [row[0].strip("`") for row in table(title, number)]


def programs(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section("For client authors"), re.DOTALL)


def test_the_rest_table_names_every_call_and_no_other():
    calls = {f"{method.upper()} {path}" for path, item in document()["paths"].items() for method in item}
    assert sorted(first_words("REST", 0)) == sorted(calls)


def test_the_table_of_errors_names_every_code_with_its_status():
    told = {row[0].strip("`"): int(row[1]) for row in table("REST", 1)}
    assert set(told) == set(CODES)
    raised = [error for error in vars(errors).values() if isinstance(error, type)]
    for error in [*raised, Throttled]:
        if issubclass(error, EngineError) and error.code != "internal":
            assert told[error.code] == error.status


def test_the_table_of_commands_names_every_frame_a_socket_takes():
    assert sorted(first_words("WebSocket", 0)) == sorted([*frames._COMMANDS, "ping"])


def test_the_table_of_frames_names_every_frame_a_socket_sends():
    items = [
        follow.SessionChanged({}),
        follow.CancellationChanged("", pending=True, revision=1),
        follow.EffectChanged("", "", ""),
        follow.SessionDeleted(""),
        follow.SummaryChanged({"id": "", "title": "", "status": "", "updated_at": ""}),
    ]
    assert {type(item) for item in items} | {follow.Event} == set(follow.Item.__args__)
    told = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table("WebSocket", 1)}
    for item in items:
        frame = frames._frame(item)
        assert told.pop(frame.pop("type")) == set(frame)
    assert told == {
        "run.event": {"event"},
        "response": {"request_id", "result"},
        "error": {"request_id", "code", "message", "cancellation"},
        "pong": set(),
    }


def test_the_table_of_close_codes_names_every_code_that_is_used():
    used = {
        node.value
        for name in ("websocket/consumers", "websocket/base_consumer", "server/transport")
        for node in ast.walk(ast.parse((ROOT / "chat" / f"{name}.py").read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
        if 1000 <= node.value <= 1015 or 4000 <= node.value <= 4999
    }
    assert [int(code) for code in first_words("WebSocket", 2)] == sorted(used)


class Cutter:
    """A way to the server that breaks the first connections off once they have carried so many bytes."""

    def __init__(self, port: int, cuts: int, after: int) -> None:
        self._port, self._after = port, after
        self.cuts_left = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()
            threading.Thread(target=self._carry_back, args=(server, client), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        _end(server)

    def _carry_back(self, server: socket.socket, client: socket.socket) -> None:
        streamed = 0
        try:
            while data := server.recv(65536):
                client.sendall(data)
                streamed += len(data) if streamed or b"text/event-stream" in data else 0
                if self.cuts_left and streamed > self._after:
                    self.cuts_left -= 1
                    break
        except OSError:
            pass
        _end(client)

    def close(self) -> None:
        self._listener.close()


def _end(connection: socket.socket) -> None:
    """Close at once, although another thread may be reading from it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.mark.slow
class TestPrograms:
    """Each as it stands there, against a server as ``make run`` starts it."""

    @pytest.fixture
    def lines(self, run):  # noqa: F811
        return introduction(run("quickstart"))

    @staticmethod
    def execute(arguments: list[str], lines: dict[str, str], address: str = "") -> str:
        done = subprocess.run(
            arguments,
            env={
                "PATH": os.environ["PATH"],
                "ADDRESS": address or lines["Address"].rstrip("/"),
                "TOKEN": lines["Token"],
            },
            capture_output=True,
            text=True,
            timeout=PATIENT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_with_curl(self, lines):
        _, program = programs("sh")
        said = self.execute(["sh", "-euc", program], lines)
        assert "event: run.queued" in said
        assert "event: run.completed" in said
        assert '"role":"assistant"' in said

    def test_in_python_through_broken_connections(self, lines):
        program, _ = programs("python")
        way = Cutter(urlsplit(lines["Address"]).port, cuts=3, after=2_000)
        said = self.execute([sys.executable, "-c", program], lines, way.address)
        way.close()
        assert way.cuts_left == 0
        text, _, end = said.rstrip("\n").rpartition("\n")
        assert end == "run.completed"
        with httpx.Client(
            base_url=lines["Address"], headers={"Authorization": f"Bearer {lines['Token']}"}
        ) as api:
            session = api.get("/api/sessions/").json()["results"][0]["id"]
            messages = api.get(f"/api/sessions/{session}/history/").json()["messages"]
        assert text == messages[-1]["text"]
        assert len(text) > 2_000

    def test_with_the_openai_client(self, lines):
        _, program = programs("python")
        assert len(self.execute([sys.executable, "-c", program], lines).split()) > 3
