"""Notices to listeners: in this process directly, in other processes over the channel layer.

The layer may lose them or be down. So every notice is a hint, and its facts are in the database. A process
has one channel, however many listeners it has.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

from asgiref.sync import async_to_sync
from channels.layers import InMemoryChannelLayer, get_channel_layer

from runs import this_process
from runs.foundation.tasks import end

logger = logging.getLogger(__name__)

T = TypeVar("T")

Message: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[Message], None]

# Notices that wait for the layer. Others are dropped, as the log has their facts.
_OUTBOX_LIMIT = 10_000
# Seconds to wait for a layer whose server hangs. A client may begin to follow so much later.
_TIMEOUT = 2.0


class Bus:
    """The listeners of this process, and its channel of the layer; on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._layer = get_channel_layer()
        self._is_shared = not isinstance(self._layer, InMemoryChannelLayer)  # with other processes
        self._name = str(uuid4())
        self._channel = ""  # not joined yet
        self._handlers: dict[str, Handler] = {}
        self._outbox: list[tuple[str, Message]] = []
        self._outgoing = asyncio.Event()
        self._operations: set[asyncio.Task[Any]] = set()  # of the layer, in progress
        self.tasks: list[asyncio.Task[None]] = []  # the side loops

    @classmethod
    async def open(cls) -> "Bus":
        """A bus that has joined the channel layer, or joins when the layer is back."""
        bus = cls()
        await bus._try(bus._join())
        bus.tasks = [
            asyncio.create_task(bus._send_forever(), name="bus sender"),
            asyncio.create_task(bus._receive_forever(), name="bus receiver"),
        ]
        return bus

    async def close(self) -> None:
        """Leave the channel layer. Notices in the outbox are dropped."""
        await end(self.tasks)
        groups, self._handlers = self._handlers if self._channel else {}, {}
        for group in groups:
            if not await self._try(self._layer.group_discard(group, self._channel)):
                break
        if self._operations:
            _, unfinished = await asyncio.wait(self._operations, timeout=_TIMEOUT)
            for operation in unfinished:
                operation.cancel()

    def publish(self, group: str, message: Message) -> None:
        """Send to all listeners of ``group``, in all processes. From any thread, without blocking."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._post(group, message)
        else:
            self._loop.call_soon_threadsafe(self._post, group, message)

    async def listen(self, group: str, handler: Handler) -> None:
        """Call ``handler`` on the loop with each message of ``group``. A group has one handler."""
        self._handlers[group] = handler
        if self._channel:
            await self._try(self._layer.group_add(group, self._channel))

    async def unlisten(self, group: str) -> None:
        """Stop listening to ``group``."""
        if self._handlers.pop(group, None) and self._channel:
            await self._try(self._layer.group_discard(group, self._channel))

    async def echo(self) -> None:
        """Return when a message to this process itself has arrived. Raises what the layer raises."""
        if not self._channel:
            raise ConnectionError("The channel layer has not been joined yet.")
        group = f"echo.{uuid4()}"
        heard = asyncio.Event()
        self._handlers[group] = lambda _: heard.set()
        try:
            await self._shielded(self._layer.group_add(group, self._channel))
            await self._shielded(self._layer.group_send(group, _envelope(group, [{}])))
            await heard.wait()
        finally:
            await self.unlisten(group)

    async def refresh(self) -> None:
        """Join all groups again: a layer forgets them when it restarts or was not read for a while."""
        for group in list(self._handlers) if self._channel else ():
            if not await self._try(self._layer.group_add(group, self._channel)):
                return

    def _post(self, group: str, message: Message) -> None:
        self._deliver(group, message)
        if self._is_shared and len(self._outbox) < _OUTBOX_LIMIT:
            self._outbox.append((group, message))
            self._outgoing.set()

    async def _send_forever(self) -> None:
        while True:
            await self._outgoing.wait()
            await self.send_step()

    async def send_step(self) -> None:
        """Send what is in the outbox, one message per group."""
        self._outgoing.clear()
        taken, self._outbox = self._outbox, []
        groups: dict[str, list[Message]] = defaultdict(list)
        for group, message in taken:
            groups[group].append(message)
        for group, messages in groups.items():
            await self._try(self._layer.group_send(group, _envelope(group, messages, self._name)))

    async def _join(self) -> None:
        self._channel = await self._layer.new_channel("process")

    async def _receive_forever(self) -> None:
        while True:
            try:
                if not self._channel:
                    await self._shielded(self._join())
                    await self.refresh()
                envelope = await self._layer.receive(self._channel)
            except Exception as error:  # noqa: BLE001 (a layer may raise anything while its server is away)
                logger.warning("The channel layer cannot be read: %s. Clients catch up by polling.", error)
                await asyncio.sleep(1)
                await self.refresh()
                continue
            if envelope.get("sender") == self._name:
                continue  # was delivered when it was published
            for message in envelope["messages"]:
                self._deliver(envelope["group"], message)

    def _deliver(self, group: str, message: Message) -> None:
        handler = self._handlers.get(group)
        if handler is None:
            return
        try:
            handler(message)
        except Exception:  # the error of one listener must not stop the others
            logger.exception("A listener of %s failed.", group)

    async def _try(self, operation: Coroutine[Any, Any, Any]) -> bool:
        """Try an operation of the layer; whether it succeeded in time."""
        return await self._shielded(_attempt(operation))

    async def _shielded(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation of the layer. If the caller is cancelled, the operation goes on to its end.

        The client of Redis swallows a cancel that comes together with its server's answer. A caller that
        should end by that cancel would go on for ever.
        """
        task = asyncio.create_task(operation, name="channel layer")
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        return await asyncio.shield(task)


async def _attempt(operation: Coroutine[Any, Any, Any]) -> bool:
    try:
        async with asyncio.timeout(_TIMEOUT):  # wait_for may swallow a cancel that comes with the result
            await operation
    except Exception as error:  # noqa: BLE001 (a layer may raise anything while its server is away)
        logger.warning("The channel layer does not take messages: %r. Clients catch up by polling.", error)
        return False
    return True


def publish(group: str, message: Message) -> None:
    """Send through the bus of this process, or without one (a command) directly to the layer."""
    if this_process.engine is not None:
        this_process.engine.bus.publish(group, message)
        return
    layer = get_channel_layer()
    if isinstance(layer, InMemoryChannelLayer):
        return  # it has no other processes
    try:
        async_to_sync(layer.group_send)(group, _envelope(group, [message]))
    except Exception as error:  # noqa: BLE001 (a layer may raise anything while its server is away)
        logger.warning("The channel layer does not take messages: %r. It is caught up by polling.", error)


def _envelope(group: str, messages: list[Message], sender: str = "") -> Message:
    """The form in which the layer carries notices; ``type`` belongs to its protocol."""
    return {"type": "bus", "group": group, "messages": messages, "sender": sender}


def session_group(session_id: object) -> str:
    return f"session.{session_id}"


def worker_group(worker_id: object) -> str:
    return f"worker.{worker_id}"


def user_group(user_id: object) -> str:
    return f"user.{user_id}"
