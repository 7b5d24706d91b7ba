"""Daphne's server with a start and a shutdown of the application.

Daphne has neither. It would take requests before the engine is ready and while the engine drains, and its
clean-up fails on half-open requests.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import daphne.server  # first: it installs the reactor that everything of Twisted's then uses
from twisted.internet import defer
from twisted.internet import reactor as installed_reactor
from twisted.logger import STDLibLogObserver, globalLogBeginner

from chat.server.listener import CannotListen
from chat.server.transport import Inbox, Request, Requests, Socket, Sockets
from runs.foundation.shutdown import FAILED, Shutdown

logger = logging.getLogger(__name__)
reactor: Any = installed_reactor  # its type depends on what was installed

PATIENCE = 30  # seconds without progress after which a peer that does not read is left
PING_INTERVAL = 20
PING_TIMEOUT = 30


class Engine(Protocol):
    """What runs turns in this process."""

    broken: asyncio.Event  # set when it cannot do its work any more

    async def leave(self, seconds: float) -> None:
        """Take no new turn, drain, and have stopped everything after ``seconds``."""


class EngineBroken(Exception):
    """The engine broke and the server has left; the log says why."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


def _settle_memory() -> None:
    """Let the garbage collector skip what exists before the first request, since that stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class Server(daphne.server.Server):
    """Serves ``application`` on ``listener`` from when the engine is ready until it is told to leave.

    On SIGTERM or SIGINT it stops listening, calls ``on_leaving``, closes the sockets with 1012, drains the
    engine, ends the responses that still stream, and returns. Whatever does not let go is left behind
    ``drain_timeout`` seconds after the signal.
    """

    def __init__(
        self,
        application: Any,
        listener: socket.socket,
        *,
        start_engine: Callable[[], Awaitable[Engine]],
        drain_timeout: float,
        on_listening: Callable[[int], None] = lambda port: None,
        on_leaving: Callable[[], None] = lambda: None,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(
            application,
            endpoints=["the listener"],
            http_timeout=None,
            websocket_timeout=-1,
            ping_interval=PING_INTERVAL,
            ping_timeout=PING_TIMEOUT,
            server_name="turnkeeper",
        )
        self._listener = listener
        self._start_engine = start_engine
        self._drain_timeout = drain_timeout
        self._on_listening = on_listening
        self._on_leaving = on_leaving
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop = reactor._asyncioEventloop
        self._shutdown = Shutdown(self._loop, drain_timeout)

    def run(self) -> None:
        """Serve until told to leave. Raises what the engine raised, and CannotListen."""
        self.connections: dict[Request | Socket, dict[str, Any]] = {}
        self.http_factory = Requests(self)
        self.ws_factory = Sockets(self, ping_timeout=self.ping_timeout)
        observer: Any = STDLibLogObserver("twisted")
        globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False)
        asyncio.set_event_loop(self._loop)
        self._shutdown.handle_signals()
        life = self._loop.create_task(self._live(), name="server")
        life.add_done_callback(lambda _: reactor.stop())
        try:
            reactor.run(installSignalHandlers=False)
        except BaseException as error:  # noqa: BLE001 - a callback has ended the loop; without it nothing ends
            self._shutdown.exit_at_once(error)
        if life.exception() is not None:
            self._shutdown.exit_code = FAILED
        self._shutdown.start_deadline()  # what is stuck may also hold up the end of the interpreter
        life.result()

    async def _live(self) -> None:
        engine = await self._start_engine()
        try:
            _settle_memory()
            port = self._listen()
            self._on_listening(port.getHost().port)
            is_broken = await self._shutdown.wait(engine.broken)
            await defer.maybeDeferred(port.stopListening).asFuture(self._loop)
            if is_broken:
                raise EngineBroken
        finally:
            await self._leave(engine)

    def _listen(self) -> Any:
        try:
            self._listener.listen(128)
        except OSError as error:
            raise CannotListen(f"Cannot listen: {error.strerror}.") from None
        self._listener.setblocking(False)
        with self._listener:  # the reactor takes a copy
            port = reactor.adoptStreamPort(self._listener.fileno(), self._listener.family, self.http_factory)
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        return port

    # Leaving

    async def _leave(self, engine: Engine) -> None:
        """Drain the engine and end all connections, within the time there is."""
        until = self._shutdown.deadline
        leaving = asyncio.create_task(engine.leave(self._shutdown.seconds_left), name="engine leaves")
        await asyncio.sleep(0)  # the engine refuses turns before the first client comes back
        self._on_leaving()
        for protocol in list(self.connections):
            if isinstance(protocol, Socket):
                protocol.leave()
        try:
            await leaving
        finally:
            await self._end_applications()
            await self._end_connections(until)

    async def _end_applications(self) -> None:
        """Cancel what still answers a request or serves a socket, as a disconnect would."""
        applications = [
            details["application_instance"]
            for details in self.connections.values()
            if "application_instance" in details and not details["application_instance"].done()
        ]
        for application in applications:
            application.cancel()
        if applications:
            await asyncio.wait(applications, timeout=min(0.5, self._drain_timeout / 10))

    async def _end_connections(self, until: float) -> None:
        """End responses and sockets in good order, and wait while their last bytes are sent."""
        # Twisted tells nobody when a finished request's transport has sent its last byte: hence the loop.
        transports = [protocol.outlet.transport for protocol in self.connections]
        for protocol in list(self.connections):
            protocol.leave()
        while any(transport.connected for transport in transports) and self._loop.time() < until - 0.1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    # What daphne calls

    def create_application(self, protocol: Request | Socket, scope: dict[str, Any]) -> Any:
        """Start the application for a request or a socket; returns the queue of what it receives."""
        # Of a request. Twisted reads no further one before it is answered.
        inbox: Inbox | asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope.setdefault("asgi", {"version": "3.0"})
        if isinstance(protocol, Socket):
            inbox = Inbox(protocol.transport)
            scope["extensions"] = {"websocket.http.response": {}}
        serving = self.application(scope, inbox.get, partial(self.handle_reply, protocol))
        self.connections[protocol]["application_instance"] = self._loop.create_task(
            serving, name=f"{scope['type']} {scope['path']}"
        )
        return inbox

    async def handle_reply(self, protocol: Request | Socket, message: dict[str, Any]) -> None:
        """Pass a message of the application on to the peer; returns when the peer can take more."""
        await super().handle_reply(protocol, message)
        if not await protocol.outlet.until_free(self._patience):
            protocol.end_blocked()
