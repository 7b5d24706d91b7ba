"""The bus: what is published is heard once, and a layer that is away is a loss, never a fault."""

import asyncio

import pytest
from channels.layers import InMemoryChannelLayer

from runs.live.bus import Bus

LIMIT = 10  # seconds


class Shared:
    """A channel layer between processes, whose server may be away."""

    def __init__(self):
        self.away = False
        self.joined = asyncio.Event()  # a group
        self._layer = InMemoryChannelLayer()

    def __getattr__(self, name):
        method = getattr(self._layer, name)

        async def call(*args):
            if self.away:
                raise ConnectionError("the server is away")
            result = await method(*args)
            if name == "group_add":
                self.joined.set()
            return result

        return call if asyncio.iscoroutinefunction(method) else method


@pytest.fixture
def shared(monkeypatch):
    layer = Shared()
    monkeypatch.setattr("runs.live.bus.get_channel_layer", lambda: layer)
    return layer


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


async def test_what_is_published_here_is_heard_here_at_once(bus):
    heard = []
    await bus.listen("session.1", heard.append)
    bus.publish("session.1", {"number": 1})
    assert heard == [{"number": 1}]


async def test_a_listener_that_fails_deafens_nobody(bus, caplog):
    heard = []

    def fail(_):
        raise RuntimeError("a listener's fault")

    await bus.listen("session.1", fail)
    await bus.listen("session.2", heard.append)
    bus.publish("session.1", {})
    bus.publish("session.2", {})
    assert heard == [{}]
    assert "A listener of session.1 failed." in caplog.text


async def test_every_process_hears_what_is_published_once(shared):
    here, there = await Bus.open(), await Bus.open()
    heard = {here: [], there: []}
    arrived = asyncio.Event()
    for bus in (here, there):
        await bus.listen("session.1", heard[bus].append)
    await there.listen("session.2", lambda _: arrived.set())
    for number in range(3):
        here.publish("session.1", {"number": number})
    here.publish("session.2", {})
    await asyncio.wait_for(arrived.wait(), LIMIT)
    await here.echo()  # what the layer brings back to where it came from has come as well
    assert heard == {bus: [{"number": number} for number in range(3)] for bus in (here, there)}
    await here.close()
    await there.close()
    assert shared.groups == {}


async def test_a_process_that_starts_without_its_layer_hears_when_it_is_back(shared):
    shared.away = True
    here, there = await Bus.open(), await Bus.open()
    heard = asyncio.Event()
    await there.listen("session.1", lambda _: heard.set())
    with pytest.raises(ConnectionError):
        await there.echo()
    shared.away = False
    async with asyncio.timeout(LIMIT):
        await shared.joined.wait()
        here.publish("session.1", {})
        await heard.wait()
        await there.echo()
    await here.close()
    await there.close()
    assert shared.groups == {}


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
    monkeypatch.setattr("runs.live.bus.get_channel_layer", lambda: layer)
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
