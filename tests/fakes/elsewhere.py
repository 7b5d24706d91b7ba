"""A server of the LangGraph API: as much of it as a ``RemoteGraph`` needs that is a node of a graph."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langgraph._internal._constants import CONFIG_KEY_RESUME_MAP, INTERRUPT

# Other modes are refused, as by a server that is older than its client.
_KNOWN_MODES = {"values", "updates", "messages", "messages-tuple", "custom", "debug", "events", "tasks"}
SECRET = "sk-secret-of-elsewhere"


class Elsewhere:
    """Answers each run with one message, unless ``how`` says otherwise.

    A number is the status of a refusal. With "breaks" the graph fails, "cut" ends the stream before the run,
    "silent" sends nothing but what keeps the connection open, "slow" sends words of a model for a while,
    "asks" asks the user first.
    """

    def __init__(self) -> None:
        self.how: str | int = "well"
        self.runs: list[dict[str, Any]] = []
        self.others: list[str] = []  # requests that start no run
        self.left = threading.Event()  # a client has gone before the end

        class Handler(_Handler):
            elsewhere = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        """From now on it cannot be reached. A second call does nothing."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def open_elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    try:
        yield server
    finally:
        server.close()


class _Handler(BaseHTTPRequestHandler):
    elsewhere: Elsewhere

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/runs/stream"):
            self.elsewhere.others.append(self.path)
            self._refuse(404)
            return
        self.elsewhere.runs.append(body)
        if set(body["stream_mode"]) - _KNOWN_MODES:
            self._refuse(422)
        elif isinstance(self.elsewhere.how, int):
            self._refuse(self.elsewhere.how)
        else:
            with suppress(OSError):
                self._stream(body, self.elsewhere.how)

    def do_GET(self) -> None:
        self.elsewhere.others.append(self.path)
        self._refuse(404)

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps({"detail": SECRET}).encode())

    def _stream(self, body: dict[str, Any], how: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        words = body["input"]["messages"][-1]["content"]
        said = {"type": "ai", "content": f"Elsewhere: {words}", "id": f"remote-{len(self.elsewhere.runs)}"}
        self._tell("metadata", {"run_id": "r"})
        if how == "breaks":
            self._tell("error", {"error": "ValueError", "message": SECRET})
            return
        if how == "silent":
            self._keep_open()
            return
        if how == "asks":
            answers = body["config"]["configurable"].get(CONFIG_KEY_RESUME_MAP)
            if answers is None:
                self._tell("updates", {INTERRUPT: [{"value": "Really?", "id": "a" * 32}]})
                self._tell("end", None)
                return
            said["content"] += f" {answers['a' * 32]}"
        for _ in range(15 if how == "slow" else 1):
            if "messages-tuple" in body["stream_mode"]:
                self._tell("messages", [{"type": "AIMessageChunk", "content": "word", "id": "m"}, {}])
            threading.Event().wait(0.1 if how == "slow" else 0)
        self._tell("updates", {"agent": {"messages": [said]}})
        self._tell("values", {"messages": [*body["input"]["messages"], said]})
        if how != "cut":
            self._tell("end", None)

    def _keep_open(self) -> None:
        try:
            for _ in range(600):
                self.wfile.write(b": still there\n\n")
                threading.Event().wait(0.05)
        except OSError:
            self.elsewhere.left.set()

    def _tell(self, event: str, data: Any) -> None:
        self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    def log_message(self, *args: Any) -> None:
        """It keeps no log."""
