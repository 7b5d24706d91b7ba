"""As much HTTP/1.1 as a scripted provider needs, with a hand on the bare connection."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request, wholly read."""

    method: str
    path: str
    body: bytes


async def requests(reader: asyncio.StreamReader) -> AsyncIterator[Request]:
    """The requests of one connection, until the client closes it."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        request_line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = request_line.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        yield Request(method, target.partition("?")[0], body)


class Exchange:
    """The answer to one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.streaming = False

    async def client_left(self) -> None:
        """Return when the client's end is closed."""
        try:
            while await self._reader.read(2**16):
                pass
        except ConnectionError:
            pass

    async def drain(self) -> None:
        await self._writer.drain()

    def json(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        payload = json.dumps(body).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(payload)), **(headers or {})}
        self._writer.write(_head(status, fields) + payload)

    def begin_stream(self) -> None:
        if not self.streaming:
            self.streaming = True
            fields = {
                "Content-Type": "text/event-stream",
                "Transfer-Encoding": "chunked",
                "Connection": "close",
            }
            self._writer.write(_head(200, fields))

    def event(self, data: Mapping[str, Any] | str) -> None:
        self._write_chunk(f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n")

    def comment(self, words: str) -> None:
        self._write_chunk(f": {words}\n\n")

    def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    def disconnect(self, reset: bool) -> None:
        """Leave in mid-answer: with a TCP reset, or with an orderly close that leaves the body unfinished."""
        if reset:
            connection = self._writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()

    def _write_chunk(self, text: str) -> None:
        payload = text.encode()
        self._writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in fields.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
