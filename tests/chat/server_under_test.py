"""A server process with a stand-in for the engine and an application made for tests.

Run as ``python -m tests.chat.server_under_test``; it prints its port once it listens, and what it comes to
after that. Environment: ``ENGINE`` is ``quick``, ``slow`` (never drains) or ``stuck`` (blocks the event loop
when it leaves); ``DRAIN`` and ``PATIENCE`` are seconds.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import threading
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async

from chat.server import listener, server
from chat.server.transport import Inbox, Outlet, Socket

FLOOD = 50 * 1024 * 1024
CHUNK = b"x" * 16 * 1024

most_buffered = 0
most_waiting = 0
sent = 0
forever = threading.Event()
inbox_is_full = asyncio.Event()


class Engine:
    broken = asyncio.Event()

    async def leave(self, seconds: float) -> None:
        print("leaving", flush=True)
        if os.environ["ENGINE"] == "slow":
            await asyncio.sleep(seconds)
        if os.environ["ENGINE"] == "stuck":
            forever.wait()  # holds up the loop
        print("left", flush=True)


async def start_engine() -> Engine:
    return Engine()


def watch_buffers() -> None:
    """Remember the most that ever lay in a transport's buffer and in an inbox, and tell who is held up."""
    pause, put = Outlet.pauseProducing, Inbox.put_nowait

    def pause_and_look(outlet: Outlet) -> None:
        global most_buffered
        transport = outlet.transport
        if not most_buffered:
            print("held up", flush=True)
        most_buffered = max(most_buffered, len(transport.dataBuffer) + transport._tempDataLen)
        pause(outlet)

    def put_and_look(inbox: Inbox, message: dict) -> None:
        global most_waiting
        put(inbox, message)
        most_waiting = max(most_waiting, inbox._messages.qsize())
        if inbox._is_holding:
            inbox_is_full.set()

    Outlet.pauseProducing = pause_and_look  # type: ignore[method-assign, assignment]
    Inbox.put_nowait = put_and_look  # type: ignore[method-assign, assignment]

    end_blocked = Socket.end_blocked

    def end_and_tell(socket: Socket) -> None:
        print("given up", flush=True)
        end_blocked(socket)

    Socket.end_blocked = end_and_tell  # type: ignore[method-assign, assignment]


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await websocket(scope["path"], receive, send)
    else:
        await http(scope["path"], receive, send)


async def http(path: str, receive: Any, send: Any) -> None:
    global sent
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if path == "/flood":
        for _ in range(FLOOD // len(CHUNK)):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            sent += len(CHUNK)
    elif path == "/stream":
        await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    elif path == "/break":
        await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
        raise RuntimeError("in the middle of a response")
    elif path == "/block":
        async with ThreadSensitiveContext():
            await send({"type": "http.response.body", "body": b"blocking", "more_body": True})
            await sync_to_async(forever.wait)()
    elif path == "/thread":
        threading.Thread(target=forever.wait, name="a tool that does not end").start()
    elif path == "/release":
        forever.set()
    elif path == "/end-loop":
        threading.Thread(target=forever.wait, name="a tool that does not end").start()
        asyncio.get_running_loop().call_soon(sys.exit, "from a callback")
    elif path == "/break-engine":
        Engine.broken.set()
    numbers = {"most_buffered": most_buffered, "most_waiting": most_waiting, "sent": sent}
    await send({"type": "http.response.body", "body": json.dumps(numbers).encode()})


async def websocket(path: str, receive: Any, send: Any) -> None:
    global sent
    await receive()
    if path == "/refuse":
        headers = [(b"Retry-After", b"1")]
        await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"later"})
        return
    if path == "/undecided":
        await receive()
    await send({"type": "websocket.accept"})
    if path == "/flood":
        for number in range(FLOOD // len(CHUNK)):
            await send({"type": "websocket.send", "text": f"{number:8}" + "x" * (len(CHUNK) - 8)})
            sent += len(CHUNK)
        await send({"type": "websocket.send", "text": "the end"})
    for taken in itertools.count():
        if path == "/sluggish" and taken in (0, 20, 40, 60):
            inbox_is_full.clear()
            await inbox_is_full.wait()
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if message["text"] == "last":
            await send({"type": "websocket.send", "text": "seen all"})
        elif path == "/large":
            await send({"type": "websocket.send", "text": "x" * int(message["text"])})
        elif path == "/echo":
            await send({"type": "websocket.send", "text": message["text"]})


if __name__ == "__main__":
    watch_buffers()
    server.Server(
        application,
        listener.bind("127.0.0.1", int(os.environ.get("PORT", "0"))),
        start_engine=start_engine,
        drain_timeout=float(os.environ["DRAIN"]),
        patience=float(os.environ["PATIENCE"]),
        on_listening=lambda port: print(port, flush=True),
    ).run()
