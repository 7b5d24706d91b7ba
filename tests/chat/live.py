"""Live clients for tests: sockets, event streams and calls against the ASGI application, in this process."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from asgiref.testing import ApplicationCommunicator
from channels.testing import WebsocketCommunicator

from chat.access import tokens
from runs.foundation.database import in_thread

# Seconds until a test gives up waiting for what takes moments.
PATIENT = 20.0


def application() -> Any:
    from project.asgi import application as found

    return found


async def bearer(user: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {await in_thread(tokens.create_token, user)}"}


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    named = {"host": "testserver", **headers}
    return [(name.lower().encode(), value.encode("latin1")) for name, value in named.items()]


class Socket(WebsocketCommunicator):
    """A WebSocket client that knows frames."""

    def __init__(self, path: str, headers: dict[str, str]) -> None:
        super().__init__(application(), path, _encoded(headers))
        self._kept: deque[dict[str, Any]] = deque()  # came before an answer, and were not asked for yet

    async def say(self, kind: str, **fields: Any) -> None:
        await self.send_json_to({"type": kind, **fields})

    async def frame(self, timeout: float = PATIENT) -> dict[str, Any]:
        return self._kept.popleft() if self._kept else await self.receive_json_from(timeout)

    async def until(self, *types: str, **fields: Any) -> dict[str, Any]:
        """The next frame of one of these types with these values; what comes before is dropped."""
        while True:
            frame = await self.frame()
            if frame["type"] in types and all(frame.get(name) == value for name, value in fields.items()):
                return frame

    async def event(self, *types: str) -> dict[str, Any]:
        """The next event of one of these types."""
        while True:
            event = (await self.until("run.event"))["event"]
            if event["type"] in types:
                return event

    async def closed(self) -> int:
        """The code the server closes with; what comes before is dropped."""
        while True:
            message = await self.receive_output(PATIENT)
            if message["type"] == "websocket.close":
                return message.get("code", 1000)

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a frame and return the answer to it: a response or an error. What comes before is kept."""
        request_id = fields.setdefault("request_id", "7f6c1fd4-6d0f-4c0f-9a3e-000000000001")
        await self.say(kind, **fields)
        while True:
            frame = await self.receive_json_from(PATIENT)
            if frame["type"] in ("response", "error") and frame.get("request_id") == request_id:
                return frame
            self._kept.append(frame)


@asynccontextmanager
async def socket(user: Any, session: str = "", query: str = "", **headers: str) -> AsyncIterator["Socket"]:
    """An accepted socket of a user's: to a session, or to the list."""
    path = f"/ws/sessions/{session}/{query}" if session else f"/ws/sessions/{query}"
    client = Socket(path, headers or await bearer(user))
    accepted, code = await client.connect(PATIENT)
    assert accepted, code
    try:
        yield client
    finally:
        await client.send_input({"type": "websocket.disconnect", "code": 1001})
        await client.wait(PATIENT)


class Answer:
    """An HTTP answer, or the beginning of one."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.body = b""

    def json(self) -> Any:
        return json.loads(self.body)


class Http(ApplicationCommunicator):
    """One HTTP request whose answer is read piece by piece."""

    def __init__(self, method: str, path: str, body: Any, headers: dict[str, str]) -> None:
        self._content = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            headers = {
                "content-type": "application/json",
                "content-length": str(len(self._content)),
                **headers,
            }
        path, _, query = path.partition("?")
        super().__init__(
            application(),
            {
                "type": "http",
                "http_version": "1.1",
                "method": method,
                "path": path,
                "query_string": query.encode(),
                "headers": _encoded(headers),
                "client": ["127.0.0.1", 1],
            },
        )
        self._rest = ""

    async def begin(self) -> Answer:
        """Send the request, receive status and headers."""
        await self.send_input({"type": "http.request", "body": self._content})
        start = await self.receive_output(PATIENT)
        headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers)

    async def piece(self, timeout: float = PATIENT) -> bytes | None:
        """The next piece of the body, None at its end."""
        message = await self.receive_output(timeout)
        if message.get("more_body"):
            return message["body"]
        await self.wait(PATIENT)
        return None

    async def block(self) -> dict[str, str] | None:
        """The next block of an event stream by field, comments under the name "", None at its end."""
        while "\n\n" not in self._rest:
            piece = await self.piece()
            if piece is None:
                assert not self._rest
                return None
            self._rest += piece.decode()
        block, _, self._rest = self._rest.partition("\n\n")
        fields = {}
        for line in block.split("\n"):
            name, value = ("", line[1:]) if line.startswith(":") else line.split(": ", 1)
            fields[name] = value
        return fields

    async def event(self) -> dict[str, Any] | None:
        """The next event of an event stream, None at its end."""
        while (block := await self.block()) is not None:
            if "data" in block:
                event = json.loads(block["data"])
                assert (block["id"], block["event"]) == (str(event["seq"]), event["type"])
                return event
        return None

    async def events(self) -> list[dict[str, Any]]:
        """All that is left of an event stream."""
        found = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    async def disconnect(self) -> None:
        """The client goes; returns when the application has ended."""
        await self.send_input({"type": "http.disconnect"})
        await self.wait(PATIENT)


async def call(user: Any, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """A whole call of the API by somebody."""
    http = Http(method, f"/api/{path}", body, {**(await bearer(user) if user else {}), **headers})
    answer = await http.begin()
    while True:
        message = await http.receive_output(PATIENT)
        answer.body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await http.wait(PATIENT)
    return answer


async def stream(user: Any, path: str, body: Any = None, **headers: str) -> tuple[Answer, Http]:
    """Begin an event stream: GET without a body, POST with one."""
    headers = {"accept": "text/event-stream", **(await bearer(user)), **headers}
    http = Http("GET" if body is None else "POST", f"/api/{path}", body, headers)
    return await http.begin(), http


async def eventually(condition: Any, timeout: float = PATIENT) -> Any:
    """Poll until ``condition()`` (a plain function or a coroutine function) is true, and return it."""
    async with asyncio.timeout(timeout):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)
