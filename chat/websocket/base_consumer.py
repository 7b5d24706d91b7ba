"""The base of the WebSocket consumers: read frames, send frames, close.

All tasks of a socket run in one task group. A disconnect, a failed send, a close or an error ends them all,
and nothing else.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

from rest_framework.exceptions import APIException

from chat.access import open_connections
from chat.access.logins import Login
from chat.access.open_connections import EndReason, Kind, OpenConnection, TooMany
from chat.access.throttles import Throttled
from chat.api import inputs
from chat.api.async_view import as_object
from chat.api.errors import sentence
from runs.errors import EngineError, Invalid, Unavailable
from runs.foundation.database import DATABASE_UNAVAILABLE
from runs.operations import Data

logger = logging.getLogger(__name__)

# The longest frame a client may send, in characters.
FRAME_LIMIT = 1_000_000

TRY_AGAIN_LATER = 1013


class Close(Exception):
    """Ends the socket with this code. None: the client is gone, there is nobody to tell."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class FrameRateLimit:
    """A token bucket for the frames of a client. A frame costs one token, a large one more."""

    capacity = 200.0
    per_second = 50.0
    characters_per_token = 10_000
    # So many frames in a row may be refused before the socket is closed.
    patience = 2_000

    def __init__(self) -> None:
        self._tokens = self.capacity
        self._filled_at = monotonic()
        self._refused = 0

    def admits(self, frame: str) -> bool:
        """Whether this frame is to be read. Raises Close when the flood goes on and on."""
        now = monotonic()
        self._tokens = min(self.capacity, self._tokens + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        if self._tokens >= 1:
            self._tokens -= 1 + len(frame) / self.characters_per_token
            self._refused = 0
            return True
        self._refused += 1
        if self._refused > self.patience:
            raise Close(4429)
        return False


class Consumer:
    """An ASGI application for one WebSocket. A subclass says what it sends and which frames it takes."""

    tasks: asyncio.TaskGroup  # of this socket, once it is accepted

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scope = scope
        self.login: Login = scope["login"]
        self.user = self.login.user
        self._receive = receive
        self._send = send
        self._rate_limit = FrameRateLimit()

    @classmethod
    def as_asgi(cls) -> Callable[..., Awaitable[None]]:
        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await cls(scope, receive, send).serve()

        return application

    async def serve(self) -> None:
        """Serve the socket until it has ended."""
        await self._receive()  # websocket.connect; LoginMiddleware has checked the login
        code: int | None = 1000
        try:
            await self._to_client({"type": "websocket.accept"})
            with open_connections.register(Kind.SOCKET, self.login) as connection:
                await self._run(connection)
        except TooMany:
            code = 4429
        except Close as close:
            code = close.code
        except Unavailable:
            code = 1012
        except DATABASE_UNAVAILABLE as error:
            logger.warning(
                "A socket is closed, since the database did not do what was asked of it: %s", error
            )
            code = TRY_AGAIN_LATER
        except Exception:  # an error of ours ends this socket only
            logger.exception("A socket of user %s failed.", self.user.pk)
            code = 1011
        if code is not None:
            with suppress(Close):
                await self._to_client({"type": "websocket.close", "code": code})

    async def _run(self, connection: OpenConnection) -> None:
        """Run all tasks of the socket. The first that raises ends the others, and its exception is raised."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self.tasks = tasks
                work = {"read": self._read(), "end": self._end_with(connection), **self.work()}
                for name, coroutine in work.items():
                    tasks.create_task(coroutine, name=f"socket: {name}")
        except BaseExceptionGroup as group:
            _, faults = group.split(Close)
            raise (faults or group).exceptions[0] from None

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The coroutines that run beside reading, by name. Each raises Close to end the socket."""
        raise NotImplementedError

    def take(self, frame: Data) -> None:
        """Take a frame without waiting for anything. Raises EngineError and APIException."""
        raise Invalid("There is no frame of this type.")

    # Reading

    async def _read(self) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise Close(None)
            await self._read_frame(message.get("text"))

    async def _read_frame(self, text: str | None) -> None:
        request_id = None
        try:
            if text is None:
                raise Invalid("Binary frames are not understood; send JSON as text.")
            if len(text) > FRAME_LIMIT:
                raise Close(1009)
            if not self._rate_limit.admits(text):
                raise Throttled("You are sending frames too fast; this one was not read.")
            frame = as_object(text)
            if isinstance(frame.get("request_id"), str):
                request_id = frame["request_id"][: inputs.REQUEST_ID_LIMIT]
            inputs.Frame.read(frame)
            if frame["type"] == "ping":
                await self.tell({"type": "pong"})
            else:
                self.take(frame)
        except EngineError as error:
            await self.refuse(request_id, error.code, error.message)
        except APIException as error:  # the sentences of REST framework's validation
            await self.refuse(request_id, "invalid", sentence(error.detail))

    # Sending

    async def tell(self, frame: Data) -> None:
        await self.tell_text(json.dumps(frame))

    async def tell_text(self, frame: str) -> None:
        await self._to_client({"type": "websocket.send", "text": frame})

    async def refuse(self, request_id: str | None, code: str, message: str, **more: Any) -> None:
        await self.tell({"type": "error", "request_id": request_id, "code": code, "message": message, **more})

    async def _to_client(self, message: Data) -> None:
        """Send, which may wait for a client that reads slowly. Raises Close when it is gone."""
        try:
            await self._send(message)
        # What a server raises for a client that is gone is its own affair.
        except Exception as error:  # noqa: BLE001
            logger.debug("A frame could not be sent: %r", error)
            raise Close(None) from None

    # Ending

    async def _end_with(self, connection: OpenConnection) -> None:
        raise Close({EndReason.LOGIN: 4401, EndReason.LEAVING: 1012}[await connection.ended])
