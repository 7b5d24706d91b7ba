"""One address for several servers: by turns, whole, and around those that are gone."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from chat.cluster import balancer
from chat.cluster.balancer import Balancer
from chat.server import listener

LIMIT = 20


@asynccontextmanager
async def server(answer):
    """A server that calls ``answer`` with each connection's streams; its address."""

    async def serve(reader, writer):
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[:2]
    finally:
        listening.close()


@asynccontextmanager
async def balanced(*addresses):
    """A balancer in front of them; a function that connects to it."""
    with listener.bind("127.0.0.1", 0) as socket:
        front = Balancer(lambda: addresses)
        port = await front.listen(socket)
        try:
            async with asyncio.timeout(LIMIT):
                yield lambda: asyncio.open_connection("127.0.0.1", port)
        finally:
            front.close()


def saying(words):
    async def answer(reader, writer):
        writer.write(words)
        await writer.drain()

    return answer


async def read(connect):
    reader, writer = await connect()
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_servers_take_turns():
    async with server(saying(b"one")) as one, server(saying(b"two")) as two, balanced(one, two) as connect:
        assert sorted([await read(connect) for _ in range(4)]) == [b"one", b"one", b"two", b"two"]


async def test_a_server_that_is_gone_is_passed_over():
    async with server(saying(b"gone")) as gone:
        pass
    async with server(saying(b"here")) as here, balanced(gone, here) as connect:
        assert [await read(connect) for _ in range(4)] == [b"here"] * 4


async def test_what_is_large_comes_whole_in_both_directions_and_so_does_its_end():
    async def echo(reader, writer):
        writer.write(await reader.read())
        await writer.drain()

    sent = bytes(range(256)) * 8192
    async with server(echo) as address, balanced(address) as connect:
        reader, writer = await connect()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent
        writer.close()


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_a_client_that_goes_is_gone_for_the_server_too(way):
    gone = asyncio.Event()

    async def until_gone(reader, writer):
        writer.write(b"hello")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        gone.set()

    async with server(until_gone) as address, balanced(address) as connect:
        reader, writer = await connect()
        await reader.readexactly(5)
        writer.close() if way == "close" else writer.transport.abort()
        await gone.wait()


async def test_a_connection_that_no_server_takes_ends(monkeypatch):
    monkeypatch.setattr(balancer, "PATIENCE", 0.2)
    async with balanced() as connect:
        assert await read(connect) == b""
