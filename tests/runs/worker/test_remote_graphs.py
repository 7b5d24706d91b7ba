"""A node that is a graph on another server: it works, and what goes wrong there costs one turn."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph

from runs import operations
from runs.foundation.database import in_thread
from tests.runs.waiting import log_of, terminal, until

KNOWN_MODES = {"values", "updates", "messages", "messages-tuple", "custom", "debug", "events", "tasks"}


class Elsewhere:
    """A server that speaks as much of the protocol as a run needs."""

    def __init__(self) -> None:
        self.how = "well"
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()  # a client has gone before the end
        elsewhere = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                elsewhere.asked.append(body)
                if set(body["stream_mode"]) - KNOWN_MODES:
                    self._refuse(422)
                elif elsewhere.how == "refuses":
                    self._refuse(500)
                else:
                    self._stream(body)

            def do_GET(self) -> None:
                self._refuse(404)

            def _refuse(self, status: int) -> None:
                self.send_response(status)
                self.end_headers()

            def _stream(self, body: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                words = body["input"]["messages"][-1]["content"]
                number = len(elsewhere.asked)
                said = {"type": "ai", "content": f"Elsewhere: {words}", "id": f"remote-{number}"}
                self._tell("metadata", {"run_id": "r"})
                if elsewhere.how == "breaks":
                    self._tell("error", {"error": "ValueError", "message": "sk-secret"})
                    return
                if elsewhere.how == "hangs":
                    try:
                        for _ in range(600):
                            self.wfile.write(b": still there\n\n")
                            threading.Event().wait(0.05)
                    except OSError:
                        elsewhere.left.set()
                    return
                self._tell("updates", {"agent": {"messages": [said]}})
                self._tell("values", {"messages": [*body["input"]["messages"], said]})

            def _tell(self, event: str, data: Any) -> None:
                self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    server = Elsewhere()
    yield server
    server.close()


@pytest.fixture
async def turn(engine, alice, serve, elsewhere):
    def build() -> StateGraph[Any, Any, Any, Any]:
        graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
        graph.add_node("remote", RemoteGraph("agent", url=elsewhere.url))
        graph.add_edge(START, "remote")
        return graph

    serve(build)
    session = await in_thread(operations.create_session, alice)

    async def start(words: str) -> str:
        return (await in_thread(operations.start_turn, alice, session["id"], words))["id"]

    start.said = lambda: operations.history(alice, session["id"])  # type: ignore[attr-defined]
    return start


async def texts(turn: Any) -> list[str]:
    return [message["text"] for message in (await turn.said())["messages"]]


async def test_what_a_remote_graph_says_is_said_here(turn, elsewhere):
    assert (await terminal(await turn("one"))).status == "completed"
    assert (await terminal(await turn("two"))).status == "completed"
    assert await texts(turn) == ["one", "Elsewhere: one", "two", "Elsewhere: two"]
    assert len(elsewhere.asked) == 2


@pytest.mark.parametrize("how", ["refuses", "breaks", "is away"])
async def test_a_remote_graph_that_fails_costs_one_turn(turn, elsewhere, how):
    elsewhere.how = how
    if how == "is away":
        elsewhere.close()
    failed = await terminal(await turn("one"), 30)
    assert failed.status == "failed"
    assert "sk-secret" not in failed.error_message
    assert (await texts(turn))[0] == "one"
    if how == "is away":
        return
    elsewhere.how = "well"
    assert (await terminal(await turn("two"))).status == "completed"
    assert (await texts(turn))[-2:] == ["two", "Elsewhere: two"]


async def test_a_cancel_closes_the_stream_of_a_remote_graph_and_the_next_turn_works(turn, elsewhere, alice):
    elsewhere.how = "hangs"
    run = await turn("one")
    await until(lambda: elsewhere.asked, what="the call")
    await in_thread(operations.cancel_run, alice, run)
    assert (await terminal(run)).status == "cancelled"
    assert await asyncio.to_thread(elsewhere.left.wait, 10)
    elsewhere.how = "well"
    assert (await terminal(await turn("two"))).status == "completed"
    assert [event.type for event in await log_of(run)][-1] == "run.cancelled"
