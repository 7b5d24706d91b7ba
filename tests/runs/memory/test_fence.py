"""After its fence is closed a saver writes nothing."""

import asyncio
import random
import uuid

import pytest
from langgraph.checkpoint.conformance.test_utils import (
    generate_config,
)

from runs.errors import Fenced
from tests.runs.memory.stores import build_graph, put, stored


async def test_after_fencing_nothing_is_written(store):
    saver = store.saver()
    coroutine, config = put(saver, str(uuid.uuid4()), words="a")
    await coroutine
    await saver.fence()
    await saver.fence()
    thread = config["configurable"]["thread_id"]
    for late in (
        put(saver, thread, words="late")[0],
        saver.aput_writes(config, [("words", "late")], "task"),
        saver.adelete_thread(thread),
    ):
        with pytest.raises(Fenced):
            await late
    with pytest.raises(Fenced):
        await asyncio.to_thread(saver.put_writes, config, [("words", "late")], "task")
    assert await stored(saver, config) == {}  # and reading goes on


async def test_fencing_awaits_what_is_in_flight(store):
    reader = store.checkpoints.reader()
    chance = random.Random(6)
    for _ in range(40):
        saver = store.saver()
        puts = [put(saver, str(uuid.uuid4()), words="a") for _ in range(5)]
        tasks = [asyncio.create_task(coroutine) for coroutine, _ in puts]
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        await saver.fence()
        counts = [await reader.aget_tuple(config) is not None for _, config in puts]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        # What had begun is there when fence() returns; what had not is refused.
        assert counts == [not isinstance(result, Fenced) for result in results]


async def test_a_saver_with_an_allowlist_has_the_same_fence(store):
    saver = store.saver()
    thread = str(uuid.uuid4())
    allowed = saver.with_allowlist([("decimal", "Decimal")])
    await put(allowed, thread, words="a")[0]
    assert await allowed.aget_tuple(generate_config(thread)) is not None
    await saver.fence()
    with pytest.raises(Fenced):
        await put(allowed, thread, words="b")[0]


async def test_a_straggler_cannot_rewrite_history_through_an_old_checkpoint(store):
    """DeltaChannel replays the history from its writes, so a late one on an old checkpoint would show."""
    config = generate_config(str(uuid.uuid4()))
    saver = store.saver()
    graph = build_graph()
    first = graph.compile(saver)
    await first.ainvoke({"words": ["question 1"]}, config, durability="sync")
    old = [found async for found in saver.alist(config)][1].config  # the one the node worked on
    await saver.fence()

    second = graph.compile(store.saver())
    await second.ainvoke({"words": ["question 2"]}, config, durability="sync")
    expected = ["question 1", "answer 1", "question 2", "answer 3"]
    with pytest.raises(Fenced):
        await saver.aput_writes(old, [("words", ["late"])], "straggler")
    reading = graph.compile(store.checkpoints.reader())
    assert (await reading.aget_state(config)).values["words"] == expected

    # Without the fence it would have been rewritten, so the above is no accident.
    await store.saver().aput_writes(old, [("words", ["late"])], "straggler")
    assert "late" in (await reading.aget_state(config)).values["words"]
