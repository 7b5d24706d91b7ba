"""The engine while Redis stops and comes back: turns run on, clients catch up, cancels take effect."""

import asyncio
import copy
from contextlib import aclosing

import pytest

from runs import operations
from runs.live.follow import Event
from tests.fakes import Hold, Round, Silence, numbered, say
from tests.runs.harness import open_harness
from tests.runs.remote_followers import remote_followers
from tests.runs.waiting import PATIENCE, log_of, terminal
from tests.services import Redis, throw_away

pytestmark = pytest.mark.services("about Redis")


@pytest.fixture
def own_redis(settings):
    """A Redis of this test's own, which carries the channel layer."""
    with throw_away(Redis) as server:
        layers = copy.deepcopy(settings.CHANNEL_LAYERS)
        layers["default"]["CONFIG"]["hosts"] = [server.url]
        settings.CHANNEL_LAYERS = layers
        settings.RUNS_HEARTBEAT = 1
        yield server


@pytest.fixture
async def harness(own_redis, engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def test_clients_catch_up_while_redis_is_away_and_hear_again_when_it_is_back(harness, own_redis):
    harness.script.add(Round(numbered(20), Hold("middle"), numbered(20, delay=0.02)), say("second"))
    seen, ended, begun, one_ended = [], 0, asyncio.Event(), asyncio.Event()

    async def follow():
        nonlocal ended
        async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
            async for item in items:
                begun.set()
                if isinstance(item, Event):
                    seen.append((item.run, item.seq))
                    ended += item.terminal
                    if ended:
                        one_ended.set()
                    if ended == 2:
                        return

    async with remote_followers(harness.engine):
        following = asyncio.create_task(follow())
        await begun.wait()
        first = await harness.start("first")
        await harness.script.gate("middle").reached()

        await asyncio.to_thread(own_redis.stop)
        harness.script.gate("middle").open()
        assert (await terminal(first)).status == "completed"
        async with asyncio.timeout(5 * PATIENCE):
            await one_ended.wait()

        await asyncio.to_thread(own_redis.start)
        async with asyncio.timeout(10 * PATIENCE):
            await harness.engine.bus.echo()
            second = await harness.start("second")
            await following
    expected = [(run_id, event.seq) for run_id in (first, second) for event in await log_of(run_id)]
    assert seen == expected


async def test_without_redis_a_cancel_takes_effect_with_the_heartbeat(harness, own_redis, monkeypatch):
    harness.script.add(Round(numbered(3), Silence()))
    run_id = await harness.start()
    await harness.ledger.streamed(3)

    await asyncio.to_thread(own_redis.stop)
    # What another process publishes would not arrive.
    monkeypatch.setattr("runs.live.bus.publish", lambda group, message: None)

    assert (await harness.cancelled(run_id, 5)).status == "cancelled"
    await harness.assert_next_completes()
