"""The WebSocket consumers: one session live, and the user's list live.

The end of a socket ends no run. Close codes beside the protocol's own:

==== ==============================================================================================
1000 an error frame before it says why (``cursor_gone``: reload the history; ``invalid``: no cursor), or the
     session was deleted
1009 a frame was larger than FRAME_LIMIT
1011 a fault of ours, which is in the log; come back with the cursor
1012 the server leaves, or is not ready; come back with the cursor
1013 the database does not answer; come back with the cursor, later and later. A command that was not answered
     may have been taken or not, so it is to be repeated as it was
4401 the login has ended
4404 there is no such session, or it is not yours
4408 the client did not read (the server's doing; it sees the code if it goes on before the close times out,
     otherwise the connection ends with 1006); come back with the cursor
4429 too many sockets of this user, or a flood of frames that went on after errors ``throttled``
==== ==============================================================================================
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

from chat.access.throttles import Throttled
from chat.websocket import frames
from chat.websocket.base_consumer import Close, Consumer
from chat.websocket.frames import Command
from runs import operations
from runs.errors import CursorGone, EngineError, Invalid, NotFound
from runs.foundation.database import in_thread
from runs.operations import Data
from runs.wire import contract

# Commands that may wait to be carried out, and cancels whose end may be awaited, on one socket.
COMMAND_LIMIT = 32


class SessionListConsumer(Consumer):
    """``/ws/sessions/``: the user's own list, live. It takes no commands."""

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"follow": self._follow()}

    async def _follow(self) -> None:
        async with aclosing(operations.follow_user(self.user)) as items:
            async for item in items:
                await self.tell_text(frames.encode(item))
        raise Close(1000)


class SessionConsumer(Consumer):
    """``/ws/sessions/<id>/``: one session live, and the commands on it.

    Commands are carried out one after another, in the order they came; what takes long (the end of a cancel)
    is awaited in a task of its own. So a ping is answered and a stop is read whatever else goes on.
    """

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        super().__init__(scope, receive, send)
        self._session_id: str = scope["url_route"]["kwargs"]["session_id"]
        self._commands: asyncio.Queue[Command] = asyncio.Queue(COMMAND_LIMIT)
        self._awaited_cancels = 0

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"follow": self._follow(), "carry out": self._carry_out()}

    def take(self, frame: Data) -> None:
        try:
            self._commands.put_nowait(frames.command(frame, self._session_id))
        except asyncio.QueueFull:
            raise Throttled("Too many commands of this socket are waiting; this one was not taken.") from None

    async def _follow(self) -> None:
        try:
            items = operations.follow_session(self.user, self._session_id, self._cursor())
            async with aclosing(items) as items:
                async for item in items:
                    await self.tell_text(frames.encode(item))
        except NotFound:
            raise Close(4404) from None
        except (CursorGone, Invalid) as error:
            await self.refuse(None, error.code, error.message)
        raise Close(1000)

    def _cursor(self) -> tuple[str, int] | None:
        query = parse_qs(self.scope["query_string"].decode("latin1"))
        run, after = query.get("run", [""])[-1], query.get("after", ["0"])[-1]
        if not run:
            return None
        if not (after.isascii() and after.isdigit() and len(after) < 10):
            raise Invalid('The cursor\'s "after" must be the number of an event.')
        return run, int(after)

    async def _carry_out(self) -> None:
        while True:
            command = await self._commands.get()
            try:
                await self._carry_out_one(command)
            except EngineError as error:
                await self.refuse(command.request_id, error.code, error.message)

    async def _carry_out_one(self, command: Command) -> None:
        if command.awaits_cancel and self._awaited_cancels >= COMMAND_LIMIT:
            raise Throttled("Too many cancels of this socket are pending; this one was not taken.")
        result = await in_thread(command.act, self.user)
        if command.awaits_cancel:
            self._awaited_cancels += 1
            self.tasks.create_task(
                self._tell_settled(command.request_id, result), name="socket: await cancel"
            )
        else:
            await self._respond(command.request_id, result)

    async def _tell_settled(self, request_id: str | None, cancellation: contract.Cancellation) -> None:
        """Answer a cancel once it has settled. The cancel itself does not depend on this task."""
        try:
            settled = await operations.wait_for_cancellation(cancellation, None)
        except EngineError as error:
            await self.refuse(request_id, error.code, error.message)
        else:
            if failure := frames.failure_of(settled):
                await self.refuse(request_id, "unavailable", failure, cancellation=settled)
            else:
                await self._respond(request_id, settled)
        finally:
            self._awaited_cancels -= 1

    async def _respond(self, request_id: str | None, result: Any) -> None:
        await self.tell({"type": "response", "request_id": request_id, "result": result})
