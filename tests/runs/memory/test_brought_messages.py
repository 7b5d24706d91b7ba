"""A session that begins with messages brought along: the model gets them, whatever the first turn came to."""

import asyncio
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from runs import operations
from runs.errors import IdempotencyConflict, Invalid
from runs.foundation.database import in_thread
from runs.models import Run, Session
from runs.states import Origin
from tests.fakes import Hold, Round, call, fan_out_graph, nested_graph, plain_graph, say, text
from tests.runs.harness import open_harness
from tests.runs.waiting import terminal

SEED = [
    SystemMessage("Be brief."),
    HumanMessage("What is the weather?"),
    AIMessage(
        "", tool_calls=[{"name": "weather", "args": {"city": "Rome"}, "id": "w1", "type": "tool_call"}]
    ),
    ToolMessage("sunny", tool_call_id="w1"),
    AIMessage("It is sunny."),
]
SENT = [
    ("system", "Be brief."),
    ("user", "What is the weather?"),
    ("assistant", None),
    ("tool", "sunny"),
    ("assistant", "It is sunny."),
]


def words(messages):
    return [(message["role"], message["content"] or None) for message in messages]


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def begin(harness, said="And tomorrow?", seed=SEED, **options):
    """Open a seeded session with its first turn; the id of the run."""
    run = await in_thread(
        operations.start_session, harness.owner, said, agent="assistant", seed=seed, **options
    )
    harness.session = run["session"]
    return run["id"]


@pytest.mark.parametrize("build", [fan_out_graph, plain_graph, nested_graph])
async def test_the_model_gets_the_seed_in_every_turn(engine, alice, serve, tmp_path, build):
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(say("Rain."), say("Snow."))
        await terminal(await begin(harness))
        await terminal(await harness.start("And then?"))
        first, second = harness.provider.calls
        assert words(first.messages) == [*SENT, ("user", "And tomorrow?")]
        assert first.messages[2]["tool_calls"][0]["function"]["name"] == "weather"
        assert words(second.messages) == [
            *SENT, ("user", "And tomorrow?"), ("assistant", "Rain."), ("user", "And then?")
        ]  # fmt: skip
        await harness.assert_sendable()


async def test_the_history_shows_the_seed_before_and_after_the_first_checkpoint(harness):
    harness.script.add(Round(Hold("held"), text("Rain.")))
    shown = [("system", "Be brief."), ("user", "What is the weather?"), ("assistant", ""),
             ("assistant", "It is sunny."), ("user", "And tomorrow?")]  # fmt: skip
    run_id = await begin(harness)
    for told in (shown, [*shown, ("assistant", "Rain.")]):
        history = await harness.history()
        assert [(message["role"], message["text"]) for message in history][: len(told)] == told
        assert [message["run"] for message in history][:4] == [None] * 4
        assert history[2]["tool_calls"][0]["result"] == "sunny"
        await harness.script.gate("held").reached()
        harness.script.open_all()
        await terminal(run_id)


async def test_a_turn_cancelled_in_the_queue_leaves_the_seed_to_the_next(harness, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("runs.lifecycle.dispatch.request", lambda session_id: None)
        run_id = await begin(harness)
        await harness.cancel(run_id)
    shown = [message["text"] for message in await harness.history()]
    assert shown[-3:] == ["It is sunny.", "And tomorrow?", "(Stopped before an answer was given.)"]
    harness.script.add(say("Hello."))
    assert (await terminal(await harness.start("Still there?"))).status == "completed"
    sent = words(harness.provider.calls[-1].messages)
    assert sent[: len(SENT) + 1] == [*SENT, ("user", "And tomorrow?")]
    assert sent[-1] == ("user", "Still there?")
    assert len(sent) == len(SENT) + 3  # the note that the turn was stopped
    await harness.assert_sendable()


async def test_a_turn_cancelled_before_its_first_checkpoint_leaves_the_seed_in_the_history(
    harness, monkeypatch
):
    """The claim finds the cancel already accepted: the graph never starts, the repair writes it all."""
    from runs.worker import graph_input

    loading, go_on = asyncio.Event(), asyncio.Event()
    give = graph_input._start

    async def slowly(*args):
        loading.set()
        await go_on.wait()
        return await give(*args)

    monkeypatch.setattr(graph_input, "_start", slowly)
    run_id = await begin(harness)
    await loading.wait()
    await harness.cancel(run_id)
    await harness.engine.executions[UUID(run_id)]._stop
    go_on.set()
    assert (await terminal(run_id)).status == "cancelled"
    assert harness.provider.calls == []
    assert [message.content for message in await harness.state()][:6] == [
        "Be brief.", "What is the weather?", "", "sunny", "It is sunny.", "And tomorrow?"
    ]  # fmt: skip
    await harness.assert_next_completes()


async def test_a_retried_first_turn_keeps_the_seed_once(harness):
    harness.script.add(say("Rain."), say("Hail."))
    run_id = await begin(harness)
    await terminal(run_id)
    again = await in_thread(operations.retry, harness.owner, run_id, "And on Monday?")
    await terminal(again["id"])
    assert words(harness.provider.calls[-1].messages) == [*SENT, ("user", "And on Monday?")]
    assert [message["text"] for message in await harness.history()][-2:] == ["And on Monday?", "Hail."]


async def test_a_seed_with_orphans_is_made_sendable(harness):
    asked = [{"name": "weather", "args": {}, "id": "w1", "type": "tool_call"}]
    seed = [HumanMessage("one"), AIMessage("", tool_calls=asked), HumanMessage("two"),
            ToolMessage("of nobody", tool_call_id="w9")]  # fmt: skip
    harness.script.add(say("Fine."))
    assert (await terminal(await begin(harness, seed=seed))).status == "completed"
    roles = [message["role"] for message in harness.provider.calls[0].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "user"]
    await harness.assert_sendable()


async def test_a_tool_turn_behind_a_seed_is_repaired_like_any_other(harness):
    harness.script.add(call("slow_async", seconds=60))
    run_id = await begin(harness)
    await harness.ledger.ended(1)
    assert (await harness.cancelled(run_id)).status == "cancelled"
    assert [message.content for message in await harness.state()][:2] == ["Be brief.", "What is the weather?"]
    await harness.assert_sendable()
    await harness.assert_next_completes()


# Idempotency


async def test_the_same_key_gives_the_same_run_of_the_same_session(harness):
    harness.script.add(Round(Hold("held"), text("Once.")))
    first, second = await asyncio.gather(begin(harness, key="k"), begin(harness, key="k"))
    assert first == second
    await harness.script.gate("held").reached()
    harness.script.open_all()
    await terminal(first)
    assert await begin(harness, key="k") == first
    assert await Session.objects.filter(origin=Origin.API).acount() == 1
    assert len(harness.provider.calls) == 1


@pytest.mark.parametrize("other", [{"said": "something else"}, {"seed": SEED[:2]}, {"seed": []}])
async def test_the_same_key_with_another_request_is_a_conflict(harness, other):
    await terminal(await begin(harness, key="k"))
    with pytest.raises(IdempotencyConflict):
        await begin(harness, **({"key": "k"} | other))
    assert await Run.objects.acount() == 1


async def test_the_same_key_of_somebody_else_is_another_key(harness, bob):
    await begin(harness, key="k")
    his = await in_thread(operations.start_session, bob, "mine", agent="assistant", key="k")
    assert his["session"] != harness.session
    await terminal(his["id"])


async def test_what_is_refused_leaves_no_session_behind(harness):
    before = await Session.objects.acount()
    with pytest.raises(Invalid):
        await begin(harness, said="   ")
    with pytest.raises(Invalid):
        await begin(harness, key="")
    assert await Session.objects.acount() == before
