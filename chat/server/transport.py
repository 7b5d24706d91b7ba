"""Daphne's connections with the limits it leaves out.

Daphne writes to a connection without looking whether the peer reads, and reads from a socket without
looking whether its application keeps up. Here a slow peer holds up the application that writes to it,
and a slow application holds up the peer that writes to it; nobody else notices, and nothing piles up.
"""

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from runs.foundation.host import this_process

MAX_MESSAGE = 1024 * 1024  # bytes; a longer message from a peer closes its socket with 1009
MAX_BODY = 16 * 1024 * 1024  # bytes; what Django itself refuses is far below, this is what we take in at all
MAX_WAITING_MESSAGES = 32  # that a socket's application has not taken yet, before we stop reading
CLOSE_TIMEOUT = 5  # seconds a peer has to answer a close frame

SERVICE_RESTART = 1012
TOO_SLOW = 4408

# With each answer, so that of several processes the one can be found whose log tells of it.
SERVED_BY = (b"X-Served-By", this_process().encode())


@implementer(IPushProducer)
class Outlet:
    """Knows whether a peer takes what is written to it.

    To the transport this is the producer that it pauses when its buffer passes the mark (64 KiB) and
    resumes when the buffer is empty.
    """

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self._free = asyncio.Event()
        self._free.set()

    @property
    def is_free(self) -> bool:
        return self._free.is_set()

    async def until_free(self, patience: float) -> bool:
        """Wait until the peer has taken what was written; False if it took none for ``patience`` seconds."""
        while not self._free.is_set():
            before = self._progress()
            try:
                async with asyncio.timeout(patience):
                    await self._free.wait()
            except TimeoutError:
                if self._progress() == before:
                    return False
        return True

    def _progress(self) -> tuple[int, int]:
        return len(self.transport.dataBuffer), self.transport.offset

    def pauseProducing(self) -> None:
        self._free.clear()

    def resumeProducing(self) -> None:
        self._free.set()
        if self.transport.disconnecting:  # it closes only once nobody is registered any more
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        self._free.set()


class Inbox:
    """The messages from a socket's peer that its application has not taken yet."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_holding = False

    def put_nowait(self, message: dict[str, Any]) -> None:
        self._messages.put_nowait(message)
        if self._messages.qsize() >= MAX_WAITING_MESSAGES and not self._is_holding:
            self._is_holding = True
            self._transport.pauseProducing()

    async def get(self) -> dict[str, Any]:
        message = await self._messages.get()
        if self._is_holding and self._messages.qsize() < MAX_WAITING_MESSAGES // 2:
            self._is_holding = False
            self._transport.resumeProducing()
        return message


class Request(WebRequest):
    """One HTTP request and its response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.outlet = Outlet(self.transport)
        self._http_channel = self.channel  # which a finished request forgets
        self._received = 0

    def handleContentChunk(self, data: bytes) -> None:
        self._received += len(data)
        if self._received <= MAX_BODY:
            super().handleContentChunk(data)
        elif self.channel is not None:
            self.channel.transport.write(b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\r\n")
            self.channel.loseConnection()

    def process(self) -> Any:
        self.requestHeaders.removeHeader(b"daphne-root-path")  # a client could move the whole site with it
        self.registerProducer(self.outlet, True)
        return super().process()

    def finish(self) -> None:
        if self.producer is not None:
            self.unregisterProducer()
            self.outlet.stopProducing()
        super().finish()

    def end_blocked(self) -> None:
        """The peer has stopped reading: leave it."""
        self.outlet.transport.abortConnection()

    def handle_exception(self, exception: BaseException) -> None:
        """The application broke. Once the response has begun, to cut it off is all that can be told."""
        if self._response_started:
            self.outlet.transport.abortConnection()
        else:
            super().handle_exception(exception)

    def handle_reply(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), SERVED_BY]}
        super().handle_reply(message)

    def leave(self) -> None:
        """The server goes: end the response in good order, so that the client comes back; then disconnect."""
        # In this order: a finished request has no channel to ask for.
        is_answering = self.application_queue is not None and not self.finished and self.channel is not None
        if is_answering and self._response_started:
            self.finish()
        elif is_answering:
            self.basic_error(503, b"Service Unavailable", "The server is leaving. Try again in a moment.")
        self._http_channel.loseConnection()


class Socket(WebSocketProtocol):
    """One WebSocket."""

    outlet: Outlet
    _refusal: dict[str, Any]  # how the answer to the handshake begins that is no acceptance

    def makeConnection(self, transport: Any) -> None:
        # A transport tells one producer only, and that is still the HTTP channel of the handshake.
        transport.unregisterProducer()
        self.outlet = Outlet(transport)
        transport.registerProducer(self.outlet, True)
        super().makeConnection(transport)

    def onMessageFrameBegin(self, length: int) -> None:
        # Autobahn's own limit would hold for what we send, too, and a message of ours may be of any size.
        # That nothing is compressed, which Autobahn has to be asked for, makes this length the whole truth.
        super().onMessageFrameBegin(length)
        if self.message_data_total_length > MAX_MESSAGE and not self.failedByMe:
            self._fail_connection(
                self.CLOSE_STATUS_CODE_MESSAGE_TOO_BIG, f"A message may have {MAX_MESSAGE} bytes."
            )

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        if hasattr(self, "server"):  # Autobahn refuses a malformed handshake by itself: nobody knows of it
            super().onClose(wasClean, code, reason)

    def check_timeouts(self) -> None:
        if self.outlet.is_free:  # otherwise a ping would wait behind what the peer has not read yet
            super().check_timeouts()

    def serverClose(self, code: int | None = None) -> None:
        # The way that daphne takes refuses codes that are the server's own, such as 1012.
        self.sendCloseFrame(code=code or 1000)

    def handle_reply(self, message: dict[str, Any]) -> None:
        """Daphne's, and ASGI's extension websocket.http.response, with a body in one piece."""
        match message["type"]:
            case "websocket.http.response.start":
                self._refusal = message
            case "websocket.http.response.body":
                headers = [(name.decode(), value.decode()) for name, value in self._refusal["headers"]]
                self._refuse(self._refusal["status"], headers, message["body"])
            case _:
                super().handle_reply(message)

    def _refuse(self, status: int, headers: Sequence[tuple[str, str]], content: bytes) -> None:
        """Answer the handshake by plain HTTP, and disconnect."""
        del self.handshake_deferred
        headers = [*headers, *self.factory.headers.items(), ("Content-Length", str(len(content)))]
        self.sendHttpErrorResponse(status, HTTPStatus(status).phrase, [*headers, ("Connection", "close")])
        self.sendData(content)
        self.wasClean = True  # or autobahn's log takes it for a fault
        self.dropConnection()
        self.server.protocol_disconnected(self)

    def end_blocked(self) -> None:
        """The peer has stopped reading: say so, behind what it has not read yet, and do not wait long.

        A peer that goes on reading within CLOSE_TIMEOUT is told; any other sees the connection end.
        """
        self.serverClose(code=TOO_SLOW)

    def leave(self) -> None:
        """The server goes: the client may come back to its successor."""
        if self.state == self.STATE_OPEN:
            self.serverClose(code=SERVICE_RESTART)
        elif self.state == self.STATE_CONNECTING and hasattr(self, "handshake_deferred"):
            self._refuse(
                503, [("Content-Type", "text/plain")], b"The server is leaving. Try again in a moment."
            )


class Sockets(WebSocketFactory):
    """Makes sockets with our limits."""

    protocol = Socket

    def __init__(self, server: Any, *, ping_timeout: float) -> None:
        super().__init__(server, server="turnkeeper", headers={SERVED_BY[0].decode(): SERVED_BY[1].decode()})
        self.setProtocolOptions(
            autoPingTimeout=ping_timeout,
            allowNullOrigin=True,  # whether an origin is welcome is decided by the application
            openHandshakeTimeout=server.websocket_handshake_timeout,
            closeHandshakeTimeout=CLOSE_TIMEOUT,
            failByDrop=False,  # a peer that did something wrong is told what
        )


class Requests(HTTPFactory):
    """Makes HTTP channels with our requests."""

    def buildProtocol(self, addr: Any) -> Any:
        channel = super().buildProtocol(addr)
        channel.requestFactory = Request
        return channel
