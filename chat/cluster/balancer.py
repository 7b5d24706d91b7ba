"""A TCP load balancer: each connection goes to the next server in turn.

It does not read HTTP, so WebSockets and event streams pass unchanged. It skips a server that does not answer.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

Address: TypeAlias = tuple[str, int]
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHUNK = 64 * 1024
# A connection waits this long, in seconds, for a server to be there, and looks so often.
PATIENCE = 10.0
LOOK_EVERY = 0.1


class Balancer:
    """Passes connections on to ``servers``, which is asked anew for each."""

    def __init__(self, servers: Callable[[], Sequence[Address]]) -> None:
        self._servers = servers
        self._turn = 0
        self._listener: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> int:
        """Take connections from now on; the port."""
        self._listener = await asyncio.start_server(self._pass_on, sock=listener, limit=CHUNK)
        return int(listener.getsockname()[1])

    def close(self) -> None:
        """Take no more connections; those that are open stay."""
        if self._listener is not None:
            self._listener.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await self._connect()
            if server is None:
                return
            from_server, to_server = server
            up = asyncio.create_task(_copy(reader, to_server))
            try:
                await _copy(from_server, writer)  # a server that has ended has nothing more to be asked
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)
                to_server.close()
        except OSError:
            writer.transport.abort()  # as the other side did
        finally:
            writer.close()

    async def _connect(self) -> Streams | None:
        """The next server in turn that takes a connection; None when none did for a while."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < deadline:
            servers = self._servers()
            for _ in servers:
                self._turn += 1
                host, port = servers[self._turn % len(servers)]
                with contextlib.suppress(OSError):
                    return await asyncio.open_connection(host, port, limit=CHUNK)
            await asyncio.sleep(LOOK_EVERY)
        return None


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes, as fast as it is taken, and its end."""
    try:
        while chunk := await source.read(CHUNK):
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()
    except OSError:
        sink.transport.abort()
        raise
