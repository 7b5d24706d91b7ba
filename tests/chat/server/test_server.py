"""The server process: what slow, broken and left-over connections do to it, and how it leaves."""

import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from http.client import HTTPException
from urllib.request import urlopen

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from chat.server.listener import CannotListen, bind
from chat.server.transport import MAX_MESSAGE, MAX_WAITING_MESSAGES
from tests import ROOT
from tests.chat.server_under_test import CHUNK, FLOOD

PATIENT = 60.0  # seconds until a test gives up waiting for something that takes moments


class RunningServer:
    def __init__(self, process: subprocess.Popen, port: int) -> None:
        self.process = process
        self.port = port

    def get(self, path: str = "/") -> dict:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENT) as response:
            return json.load(response)

    def open(self, path: str, **options):
        return connect(f"ws://127.0.0.1:{self.port}{path}", open_timeout=PATIENT, **options)

    def tcp(self) -> socket.socket:
        """A connection that takes very little before it is full."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", self.port))
        connection.settimeout(PATIENT)
        return connection

    def told(self) -> str:
        """The next line that it prints."""
        return self.process.stdout.readline().rstrip("\n")

    def leave(self) -> None:
        """Have it leave in good order, without a traceback in its log."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 0
        assert "Traceback" not in self.process.communicate()[1]

    def wait(self) -> int:
        return self.process.wait(PATIENT)


@pytest.fixture(scope="module")
def server(serve_shared):
    """One for all tests that neither end it nor ask what it has sent."""
    server = serve_shared()
    yield server
    server.leave()


@pytest.fixture(scope="module")
def serve_shared():
    yield from started_servers()


@pytest.fixture
def serve():
    """Starts a server under test: ``serve(engine=..., drain=..., patience=...)``."""
    yield from started_servers()


def started_servers():
    processes = []

    def start(engine: str = "quick", drain: float = 10, patience: float = 30) -> RunningServer:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chat.server_under_test"],
            cwd=ROOT,
            env={**os.environ, "ENGINE": engine, "DRAIN": str(drain), "PATIENCE": str(patience), "PORT": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return RunningServer(process, int(process.stdout.readline()))

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@contextmanager
def a_reader_that_does_not_read(
    server: RunningServer, path: str, *, socket_handshake: bool, more: str | None = None
):
    """Asks for a flood and leaves it lying. ``more`` is one more header."""
    connection = server.tcp()
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(b'sixteen bytes ok').decode()}\r\n"
        if socket_handshake
        else ""
    )
    more = f"{more}\r\n" if more else ""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n{upgrade}{more}\r\n".encode())
    try:
        yield connection
    finally:
        connection.close()


def is_cut_off(connection: socket.socket) -> bool:
    """Wait, without reading, for the server to end the connection; False if it does not."""
    poll = select.poll()
    poll.register(connection, 0)  # the end is reported whatever one asks for
    return bool(poll.poll(PATIENT * 1000))


def receive_for_ever(client) -> None:
    while True:
        client.recv(PATIENT)


def send_repeatedly(connection: socket.socket, data: bytes, *, times: int) -> None:
    for _ in range(times):
        connection.sendall(data)


@pytest.mark.parametrize("socket_handshake", [True, False], ids=["socket", "http"])
def test_a_reader_that_does_not_read_holds_up_its_own_application_only(serve, socket_handshake):
    server = serve()
    with a_reader_that_does_not_read(server, "/flood", socket_handshake=socket_handshake) as connection:
        assert server.told() == "held up"
        assert server.get()["sent"] < FLOOD / 4
        with server.open("/echo") as other:
            other.send("hello")
            assert other.recv(PATIENT) == "hello"
        assert server.get()["most_buffered"] < 64 * 1024 + 2 * len(CHUNK)

        # Then it reads after all, and gets everything.
        received = 0
        while received < FLOOD:
            received += len(connection.recv(1024 * 1024))
    assert server.get()["sent"] == FLOOD
    assert server.get()["most_buffered"] < 64 * 1024 + 2 * len(CHUNK)


def test_a_socket_gets_all_of_a_flood_in_order_and_is_heard_afterwards(server):
    with server.open("/flood") as client:
        numbers = [int(client.recv(PATIENT)[:8]) for _ in range(FLOOD // len(CHUNK))]
        assert numbers == list(range(FLOOD // len(CHUNK)))
        assert client.recv(PATIENT) == "the end"
        client.send("last")
        assert client.recv(PATIENT) == "seen all"


def test_a_socket_that_is_blocked_too_long_and_then_reads_is_closed_with_4408(serve):
    server = serve(patience=0.5)
    with server.open("/flood", max_queue=1, close_timeout=1) as client:
        assert server.told() == "held up"
        assert server.told() == "given up"
        with pytest.raises(ConnectionClosed) as closed:
            receive_for_ever(client)
    assert closed.value.rcvd.code == 4408


def test_a_socket_that_stays_blocked_is_cut_off(serve):
    server = serve(patience=0.5)
    with a_reader_that_does_not_read(server, "/flood", socket_handshake=True) as connection:
        assert is_cut_off(connection)


def test_a_response_that_stays_blocked_is_cut_off(serve):
    server = serve(patience=0.5)
    with a_reader_that_does_not_read(server, "/flood", socket_handshake=False) as connection:
        assert is_cut_off(connection)
        received = []
        with pytest.raises(ConnectionResetError):
            received.extend(len(data) for data in iter(lambda: connection.recv(1024 * 1024), b""))
        assert sum(received) < FLOOD


def test_an_application_that_lags_behind_holds_up_the_peer_that_floods_it(serve):
    server = serve()
    with server.open("/sluggish") as client:
        for _ in range(200):
            client.send("x" * 200_000)
        client.send("last")
        assert client.recv(PATIENT) == "seen all"
    # What one read from the network brings may come on top.
    assert server.get()["most_waiting"] <= MAX_WAITING_MESSAGES + 1


def test_a_message_that_is_too_large_closes_its_socket_with_1009(server):
    with server.open("/echo", max_size=None) as client:
        client.send("x" * MAX_MESSAGE)
        assert client.recv(PATIENT) == "x" * MAX_MESSAGE
        client.send("x" * (MAX_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(PATIENT)
    assert closed.value.rcvd.code == 1009


def test_a_message_that_is_too_large_in_all_its_fragments_closes_its_socket_with_1009(server):
    with server.open("/echo") as client:
        client.send(["x" * (MAX_MESSAGE // 2)] * 3)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(PATIENT)
    assert closed.value.rcvd.code == 1009


def test_a_socket_takes_a_message_to_its_client_of_any_size_and_goes_on(server):
    with server.open("/large", max_size=None) as client:
        for size in (3_000_000, 5, 20_000_000, MAX_MESSAGE + 1):
            client.send(str(size))
            assert client.recv(PATIENT) == "x" * size

        client.send("1" * 1_500_000)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(PATIENT)
    assert closed.value.rcvd.code == 1009


@pytest.mark.parametrize(
    "malformed",
    [
        "Origin: ",
        "Origin: http://[::1",
        "Origin: http://127.0.0.1:8000.evil.example",
        "Origin: http:///path",
        "Sec-WebSocket-Version: 99",
        "Host: other:port",
        "Ünlikely: header",
    ],
)
def test_a_malformed_handshake_is_refused_without_a_traceback(server, malformed):
    with a_reader_that_does_not_read(server, "/echo", socket_handshake=True, more=malformed) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_a_body_that_is_too_large_is_refused_while_it_comes(serve):
    server = serve()
    with server.tcp() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            send_repeatedly(connection, b"x" * 1_000_000, times=1000)
    assert server.get()["sent"] == 0


def test_a_response_whose_application_breaks_is_cut_off_and_so_is_the_next(serve):
    """What looks after the applications goes on: nothing of a connection is kept once it has ended."""
    server = serve()
    for _ in range(2):
        with server.tcp() as connection:
            connection.sendall(b"GET /break HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"alive" in connection.recv(1000)
            assert is_cut_off(connection)


def test_an_abandoned_request_in_blocking_code_harms_nobody(serve):
    server = serve()
    for _ in range(5):
        with a_reader_that_does_not_read(server, "/block", socket_handshake=False) as connection:
            assert connection.recv(10) == b"HTTP/1.1 2"
    for _ in range(5):
        with server.open("/echo") as client:
            client.send("hello")
            assert client.recv(PATIENT) == "hello"
    server.get("/release")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_in_good_order(serve, number):
    server = serve()
    with (
        server.tcp() as half_open,
        a_reader_that_does_not_read(server, "/stream", socket_handshake=False) as stream,
        server.open("/echo") as client,
    ):
        half_open.sendall(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\nonly half of it")
        assert stream.recv(10) == b"HTTP/1.1 2"
        server.get()  # is answered, but not forgotten yet
        server.process.send_signal(number)

        with pytest.raises(ConnectionClosed) as closed:
            client.recv(PATIENT)
        assert closed.value.rcvd.code == 1012

        response = b""
        while data := stream.recv(4096):
            response += data
        assert response.endswith(b"0\r\n\r\n"), (
            "the stream ends as a whole one, so that its reader comes back"
        )

    assert server.wait() == 0
    out, errors = server.process.communicate()
    assert out.splitlines() == ["leaving", "left"]
    assert errors == ""


def test_it_takes_no_new_connection_once_it_leaves(serve):
    server = serve(engine="slow", drain=20)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stdout.readline() == "leaving\n"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port))


def test_a_socket_that_was_not_accepted_yet_is_refused_when_it_leaves(serve):
    server = serve()
    with a_reader_that_does_not_read(server, "/undecided", socket_handshake=True) as connection:
        server.get()  # by now the handshake has arrived
        server.process.send_signal(signal.SIGTERM)
        assert b" 503 " in connection.recv(4096)
    assert server.wait() == 0


def test_a_handshake_is_refused_with_what_the_application_says(server):
    with pytest.raises(InvalidStatus) as refused, server.open("/refuse"):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.reason_phrase) == (503, "Service Unavailable")
    assert (answer.headers["Retry-After"], answer.body) == ("1", b"later")
    assert answer.headers["X-Served-By"].endswith(f":{server.process.pid}")
    with server.open("/echo") as client:
        client.send("hello")
        assert client.recv(PATIENT) == "hello"


@pytest.mark.parametrize("engine", ["slow", "stuck"])
def test_it_is_gone_at_the_limit_whatever_is_stuck(serve, engine):
    server = serve(engine=engine, drain=1)
    server.get("/thread")  # which does not end, and neither does an engine that is stuck
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_second_interrupt_ends_it_at_once(serve):
    server = serve(engine="stuck", drain=1000)
    server.process.send_signal(signal.SIGINT)
    assert server.process.stdout.readline() == "leaving\n"
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 130


def test_a_port_in_use_is_a_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            CannotListen, match=rf"^Cannot listen on 127\.0\.0\.1:{port}: Address already in use\.$"
        ):
            bind("127.0.0.1", port)


def test_a_callback_that_ends_the_loop_ends_the_process_at_once(serve):
    server = serve(drain=1000)
    with suppress(OSError, HTTPException):  # its answer may still get out
        server.get("/end-loop")
    assert server.wait() == 1


def test_an_engine_that_breaks_takes_the_server_with_it(serve):
    server = serve()
    server.get("/break-engine")
    assert server.wait() == 1
