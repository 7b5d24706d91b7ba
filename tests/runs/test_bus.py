"""The bus: what is published is heard, and a layer that is away is a loss, never a fault."""

import asyncio

import pytest
from channels.layers import InMemoryChannelLayer

from runs.bus import Bus

LIMIT = 10  # seconds


class Away(InMemoryChannelLayer):
    """A channel layer whose server is away until ``back`` is set."""

    back = False

    async def new_channel(self, *args):
        return await self._if_back(super().new_channel(*args))

    async def group_send(self, *args):
        return await self._if_back(super().group_send(*args))

    async def _if_back(self, call):
        if not self.back:
            call.close()
            raise ConnectionError("the server is away")
        return await call


@pytest.fixture
async def bus():
    bus = await Bus.open()
    yield bus
    await bus.close()


async def test_what_is_published_is_heard_in_order(bus):
    heard, all_heard = [], asyncio.Event()

    def hear(message):
        heard.append(message["number"])
        if len(heard) == 100:
            all_heard.set()

    await bus.listen("session.1", hear)
    for number in range(100):
        bus.publish("session.1", {"number": number})
    await asyncio.wait_for(all_heard.wait(), LIMIT)
    assert heard == list(range(100))


async def test_an_echo_arrives_and_leaves_nothing(bus):
    await asyncio.wait_for(bus.echo(), LIMIT)
    assert bus._handlers == {}


async def test_line_7_a_process_that_starts_without_its_layer_hears_when_it_is_back(monkeypatch):
    layer = Away()
    monkeypatch.setattr("runs.bus.get_channel_layer", lambda: layer)
    bus = await Bus.open()
    heard = asyncio.Event()
    await bus.listen("session.1", lambda _: heard.set())
    with pytest.raises(ConnectionError):
        await bus.echo()
    layer.back = True
    async with asyncio.timeout(LIMIT):
        while not heard.is_set():
            bus.publish("session.1", {})
            await asyncio.sleep(0.05)
        await bus.echo()
    await bus.close()
    assert layer.groups == {}


class Deaf(InMemoryChannelLayer):
    """A channel layer that loses a cancel while it is asked to let somebody join."""

    def __init__(self):
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def group_add(self, group, channel):
        self.asked.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            await self.answer.wait()
        await super().group_add(group, channel)


@pytest.mark.parametrize(
    "ask", [lambda bus: bus.listen("session.1", print), Bus.echo], ids=["listen", "echo"]
)
async def test_whoever_is_cancelled_while_it_waits_for_the_layer_ends(monkeypatch, ask):
    layer = Deaf()
    monkeypatch.setattr("runs.bus.get_channel_layer", lambda: layer)
    bus = await Bus.open()

    async def listen():
        await ask(bus)
        await asyncio.Event().wait()

    listener = asyncio.create_task(listen())
    await layer.asked.wait()
    listener.cancel()
    layer.answer.set()
    assert await asyncio.wait({listener}, timeout=LIMIT) == ({listener}, set())
    assert listener.cancelled()
    await bus.close()
    assert layer.groups == {}
