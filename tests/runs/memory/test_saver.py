"""A fenced saver does what LangGraph's own does."""

import asyncio
import uuid
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.test_utils import (
    generate_checkpoint,
    generate_config,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from runs.memory.checkpoints.saver import By, FencedSaver
from tests.runs.memory.stores import LIMIT, build_graph, put


async def test_the_fenced_saver_conforms_like_langgraphs_own(backend, monkeypatch):
    monkeypatch.setattr(FencedSaver, "_with_facts", lambda self, metadata: metadata)

    @checkpointer_test(name="fenced")
    async def fenced():
        store = await backend.open()
        yield store.saver()
        await store.checkpoints.close()

    @checkpointer_test(name="raw")
    async def raw():
        if backend.name == "sqlite":
            async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
                yield saver
        else:
            async with AsyncPostgresSaver.from_conn_string(backend.address) as saver:
                yield saver

    own, theirs = await validate(fenced), await validate(raw)
    assert own.passed_all(), own.to_dict()
    for capability, result in theirs.results.items():
        assert own.results[capability].detected == result.detected
        assert own.results[capability].tests_passed == result.tests_passed
    assert own.results["put"].tests_passed > 0


async def test_each_checkpoint_says_whose_it_is_and_not_what_would_be_taken_for_a_reentry(store):
    saver = store.saver()
    config = generate_config(str(uuid.uuid4()))
    metadata: Any = {"source": "loop", "run_id": "x"}
    config = await saver.aput(config, generate_checkpoint(), metadata, {})
    saver.by = By.REPAIR
    found = await saver.aget_tuple(config)
    assert found is not None
    own = {key: found.metadata.get(key) for key in ("source", "turn", "claim", "by", "run_id")}
    assert own == {"source": "loop", "turn": "turn", "claim": 1, "by": "graph", "run_id": None}


async def test_a_graph_in_a_thread_may_use_the_methods_without_a(store):
    saver = store.saver()
    thread = str(uuid.uuid4())
    coroutine, _ = put(saver, thread, words="a")
    await coroutine

    def in_thread():
        config = saver.get_tuple(generate_config(thread)).config
        saver.put_writes(config, [("words", "b")], "task")
        assert saver.get_delta_channel_history(config=config, channels=["words"]) == {"words": {"writes": []}}
        (found,) = saver.list(generate_config(thread))
        assert found.pending_writes == [("task", "words", "b")]
        saver.delete_thread(thread)
        assert saver.get_tuple(config) is None

    await asyncio.to_thread(in_thread)
    with pytest.raises(asyncio.InvalidStateError):
        saver.get_tuple(generate_config(thread))


async def test_reading_a_history_may_read_in_between(store):
    """LangGraph's SQLite saver holds its lock while it lists; reading inside of that would never end."""
    saver = store.saver()
    thread = str(uuid.uuid4())
    for number in range(3):
        await put(saver, thread, words=str(number))[0]
    reader = store.checkpoints.reader()
    async with asyncio.timeout(LIMIT):
        seen = [
            (await reader.aget_tuple(found.config)).checkpoint["channel_values"]["words"]
            async for found in reader.alist(generate_config(thread))
        ]
    assert seen == ["2", "1", "0"]


async def test_a_reader_writes_nothing(store):
    reader = store.checkpoints.reader()
    with pytest.raises(NotImplementedError):
        await reader.aput_writes(generate_config(checkpoint_id="1"), [("words", "a")], "task")


async def test_a_graph_reads_its_own_writes_and_its_history(store):
    config = generate_config(str(uuid.uuid4()))
    graph = build_graph().compile(store.saver())
    for number in range(3):
        await graph.ainvoke({"words": [f"question {number}"]}, config, durability="sync")
    states = [state async for state in graph.aget_state_history(config)]
    assert states[0].values["words"][-1] == "answer 5"
    assert states[0].values["count"] == 3
    assert len(states) == 9
