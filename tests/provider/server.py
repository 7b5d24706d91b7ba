"""An LLM provider that does what a script says: OpenAI's chat completions over HTTP, streaming or not.

Use it with ``ChatOpenAI(base_url=provider.base_url, api_key="...")``. In the loop of a test::

    async with ScriptedProvider(Script(say("Hello."))) as provider: ...

in a thread of its own, for code that has no loop or several::

    with ScriptedProvider(script).in_thread() as provider: ...

or as a process, ``python -m tests.provider --port N``, driven over HTTP by ``RemoteProvider``.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.provider.http import Exchange, Request, requests
from tests.provider.ledger import Call, Ledger, Outcome
from tests.provider.script import (
    CallPiece,
    Disconnect,
    Failure,
    Hold,
    Messages,
    Pause,
    Round,
    Script,
    Silence,
    Text,
    Usage,
)
from tests.provider.strict import fault_in

MODEL = "scripted"


class ScriptedProvider:
    """One provider on 127.0.0.1. ``strict`` refuses a history that is not well-formed with 400.

    ``strict_user_after_tool`` refuses, besides, a user message right behind a tool's result.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        strict: bool = True,
        strict_user_after_tool: bool = False,
        port: int = 0,
    ) -> None:
        self.script = script or Script()
        self.ledger = Ledger()
        self.strict = strict
        self.strict_user_after_tool = strict_user_after_tool
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> list[Call]:
        return self.ledger.calls

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=2**26)
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Stop listening and end every open call."""
        self.script.open_all()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def __aenter__(self) -> "ScriptedProvider":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator["ScriptedProvider"]:
        """Serve from a thread with a loop of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="scripted-provider", daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.start(), loop).result(10)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.aclose(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for request in requests(reader):
                exchange = Exchange(reader, writer)
                if request.path.endswith("/chat/completions"):
                    await self._complete(request, exchange)
                    break  # a call has its connection to itself, so that its end is the call's end
                if request.path.endswith("/models"):
                    exchange.json(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
                else:
                    status, body = self._control(request)
                    exchange.json(status, body)
                await writer.drain()
        except (ConnectionError, EOFError):
            pass  # the client's business; the ledger has it
        finally:
            writer.close()

    # Completions

    async def _complete(self, request: Request, exchange: Exchange) -> None:
        body = json.loads(request.body)
        messages: Messages = body.get("messages") or []
        tools = [tool.get("function", {}).get("name", "") for tool in body.get("tools") or []]
        call = self.ledger.open(messages, stream=bool(body.get("stream")), tools=tools)
        fault = fault_in(messages, user_after_tool=not self.strict_user_after_tool) if self.strict else None
        if fault:
            self.ledger.end(call, "refused")
            exchange.json(400, _error(fault, "invalid_request_error"))
            return
        played = self.script.next(messages)
        answer = self._stream if call.stream else self._answer
        playing = asyncio.ensure_future(answer(call, played, exchange, body))
        leaving = asyncio.ensure_future(exchange.client_left())
        try:
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                self.ledger.end(call, playing.result(), played)
            else:
                self.ledger.end(call, "closed", played)
        except ConnectionError:
            self.ledger.end(call, "closed", played)
        finally:
            playing.cancel()
            leaving.cancel()
            self.ledger.end(call, "failed", played)  # when the provider itself leaves
            await asyncio.gather(playing, leaving, return_exceptions=True)

    async def _answer(self, call: Call, played: Round, exchange: Exchange, body: dict[str, Any]) -> Outcome:
        """The whole answer in one JSON body."""
        pieces: list[Text | CallPiece] = []
        async for step in self._steps(played):
            if isinstance(step, Failure):
                return self._refuse(step, exchange)
            if isinstance(step, Disconnect):
                exchange.disconnect(step.reset)
                return "failed"
            if isinstance(step, Text | CallPiece):
                pieces.append(step)
        for _ in pieces:
            self.ledger.sent(call)
        exchange.json(200, _completion(pieces, call.usage(played), played.style != "none"))
        await exchange.drain()
        return "completed"

    async def _stream(self, call: Call, played: Round, exchange: Exchange, body: dict[str, Any]) -> Outcome:
        """Server-sent events, a chunk for each piece."""
        report = _UsageReport(played, call, bool((body.get("stream_options") or {}).get("include_usage")))
        calls_tools = False
        async for step in self._steps(played):
            if isinstance(step, Failure):
                if not exchange.streaming:
                    return self._refuse(step, exchange)
                exchange.event(_error(step.message, "server_error"))
                exchange.end_stream()
                return "failed"
            exchange.begin_stream()
            if isinstance(step, Disconnect):
                await exchange.drain()
                exchange.disconnect(step.reset)
                return "failed"
            if isinstance(step, Silence):
                exchange.comment("keep-alive")
            elif isinstance(step, Text | CallPiece):
                calls_tools = calls_tools or isinstance(step, CallPiece)
                exchange.event(_chunk(_delta(step, first=not call.chunks), usage=report.for_next()))
                self.ledger.sent(call)
            await exchange.drain()
        exchange.begin_stream()
        exchange.event(_chunk({}, finish="tool_calls" if calls_tools else "stop"))
        if report.last is not None:
            exchange.event({**_chunk({}), "choices": [], "usage": report.last})
        exchange.event("[DONE]")
        exchange.end_stream()
        await exchange.drain()
        return "completed"

    async def _steps(self, played: Round) -> AsyncIterator[Any]:
        """The steps of a round in their time; a silence is yielded once for each of its comments."""
        for step in played.steps:
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Hold):
                gate = self.script.gate(step.gate)
                gate.arrive()
                await gate.passed()
            elif isinstance(step, Silence):
                if step.keep_alive is None:
                    await asyncio.Event().wait()
                while True:
                    yield step
                    await asyncio.sleep(step.keep_alive or 0)
            else:
                if isinstance(step, Text | CallPiece) and step.delay:
                    await asyncio.sleep(step.delay)
                yield step

    def _refuse(self, failure: Failure, exchange: Exchange) -> Outcome:
        kind = "invalid_request_error" if failure.status < 500 else "server_error"
        headers = {"Retry-After": str(failure.retry_after)} if failure.retry_after is not None else {}
        exchange.json(failure.status, _error(failure.message, kind), headers)
        return "failed"

    # Control from another process

    def _control(self, request: Request) -> tuple[int, dict[str, Any]]:
        data = json.loads(request.body or "{}")
        match request.method, request.path.removeprefix("/control/").split("/"):
            case "GET", ["ledger"]:
                return 200, self.ledger.to_json() | {"left": self.script.left}
            case "POST", ["rounds"]:
                rounds = [Round.from_json(item) for item in data.pop("rounds")]
                self.script.add(*rounds, **data)
                return 200, {"left": self.script.left}
            case "POST", ["options"]:
                self.strict = data.get("strict", self.strict)
                self.strict_user_after_tool = data.get("strict_user_after_tool", self.strict_user_after_tool)
                if "default" in data:
                    self.script.default = Round.from_json(data["default"])
                return 200, {"strict": self.strict, "strict_user_after_tool": self.strict_user_after_tool}
            case "POST", ["clear"]:
                self.script.clear()
                self.ledger.clear()
                return 200, {}
            case "GET", ["gates", name]:
                gate = self.script.gate(name)
                return 200, {"arrivals": gate.arrivals, "opened": gate.opened}
            case "POST", ["gates", name]:
                self.script.gate(name).open()
                return 200, {}
        return 404, _error(f"nothing at {request.method} {request.path}", "invalid_request_error")


class _UsageReport:
    """What is said of the usage, in the style of the round."""

    def __init__(self, played: Round, call: Call, asked: bool) -> None:
        self._usage = call.usage(played)
        self._style = played.style if asked else "none"
        self._total = max(1, played.chunks)
        self._reported = 0  # completion tokens
        self._chunks = 0

    def for_next(self) -> dict[str, Any] | None:
        """The usage on the next chunk of text or tool call."""
        self._chunks += 1
        so_far = self._usage.completion * self._chunks // self._total
        new, self._reported = so_far - self._reported, so_far
        if self._style == "cumulative":
            return _usage(self._usage.prompt, so_far, self._usage.cached, self._usage.reasoning)
        if self._style == "delta":
            first = self._chunks == 1
            return _usage(self._usage.prompt if first else 0, new, self._usage.cached if first else 0, 0)
        return None

    @property
    def last(self) -> dict[str, Any] | None:
        """The usage on a chunk of its own at the end."""
        usage = self._usage
        if self._style == "last":
            return _usage(usage.prompt, usage.completion, usage.cached, usage.reasoning)
        return None


def _usage(prompt: int, completion: int, cached: int, reasoning: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _delta(step: Text | CallPiece, *, first: bool) -> dict[str, Any]:
    delta: dict[str, Any] = {"role": "assistant"} if first else {}
    if isinstance(step, Text):
        return delta | {"content": step.text}
    function = {
        key: value for key, value in (("name", step.name), ("arguments", step.arguments)) if value is not None
    }
    piece: dict[str, Any] = {"index": step.index, "function": function}
    if step.id is not None:
        piece |= {"id": step.id, "type": "function"}
    return delta | {"tool_calls": [piece]}


def _chunk(
    delta: dict[str, Any], *, finish: str | None = None, usage: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        "usage": usage,
    }


def _completion(pieces: list[Text | CallPiece], usage: Usage, reported: bool) -> dict[str, Any]:
    spoken = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    asked: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if isinstance(piece, CallPiece):
            call = asked.setdefault(
                piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] += piece.id or ""
            call["function"]["name"] += piece.name or ""
            call["function"]["arguments"] += piece.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": spoken or None}
    if asked:
        message["tool_calls"] = list(asked.values())
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if asked else "stop"}],
        "usage": _usage(usage.prompt, usage.completion, usage.cached, usage.reasoning) if reported else None,
    }


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
