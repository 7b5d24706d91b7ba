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
from tests.runs.stage import open_stage
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
async def stage(engine, alice, serve, tmp_path):
    async with open_stage(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def begin(stage, said="And tomorrow?", seed=SEED, **options):
    """Open a seeded session with its first turn; the id of the run."""
    run = await in_thread(
        operations.start_session, stage.owner, said, agent="assistant", seed=seed, **options
    )
    stage.session = run["session"]
    return run["id"]


@pytest.mark.parametrize("build", [fan_out_graph, plain_graph, nested_graph])
async def test_the_model_gets_the_seed_in_every_turn(engine, alice, serve, tmp_path, build):
    async with open_stage(alice, serve, tmp_path / "marks", build=build) as stage:
        stage.script.add(say("Rain."), say("Snow."))
        await terminal(await begin(stage))
        await terminal(await stage.start("And then?"))
        first, second = stage.provider.calls
        assert words(first.messages) == [*SENT, ("user", "And tomorrow?")]
        assert first.messages[2]["tool_calls"][0]["function"]["name"] == "weather"
        assert words(second.messages) == [
            *SENT, ("user", "And tomorrow?"), ("assistant", "Rain."), ("user", "And then?")
        ]  # fmt: skip
        await stage.assert_sendable()


async def test_the_history_shows_the_seed_before_and_after_the_first_checkpoint(stage):
    stage.script.add(Round(Hold("held"), text("Rain.")))
    shown = [("system", "Be brief."), ("user", "What is the weather?"), ("assistant", ""),
             ("assistant", "It is sunny."), ("user", "And tomorrow?")]  # fmt: skip
    run_id = await begin(stage)
    for told in (shown, [*shown, ("assistant", "Rain.")]):
        history = await stage.history()
        assert [(message["role"], message["text"]) for message in history][: len(told)] == told
        assert [message["run"] for message in history][:4] == [None] * 4
        assert history[2]["tool_calls"][0]["result"] == "sunny"
        await stage.script.gate("held").reached()
        stage.script.open_all()
        await terminal(run_id)


async def test_a_turn_cancelled_in_the_queue_leaves_the_seed_to_the_next(stage, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("runs.lifecycle.dispatch.request", lambda session_id: None)
        run_id = await begin(stage)
        await stage.cancel(run_id)
    shown = [message["text"] for message in await stage.history()]
    assert shown[-3:] == ["It is sunny.", "And tomorrow?", "(Stopped before an answer was given.)"]
    stage.script.add(say("Hello."))
    assert (await terminal(await stage.start("Still there?"))).status == "completed"
    sent = words(stage.provider.calls[-1].messages)
    assert sent[: len(SENT) + 1] == [*SENT, ("user", "And tomorrow?")]
    assert sent[-1] == ("user", "Still there?")
    assert len(sent) == len(SENT) + 3  # the note that the turn was stopped
    await stage.assert_sendable()


async def test_a_turn_cancelled_before_its_first_checkpoint_leaves_the_seed_in_the_history(
    stage, monkeypatch
):
    """The claim finds the cancel already accepted: the graph never starts, the repair writes it all."""
    from runs.worker import graph_input

    loading, go_on = asyncio.Event(), asyncio.Event()
    give = graph_input.graph_input

    async def slowly(*args):
        loading.set()
        await go_on.wait()
        return await give(*args)

    monkeypatch.setattr(graph_input, "graph_input", slowly)
    run_id = await begin(stage)
    await loading.wait()
    await stage.cancel(run_id)
    await stage.engine.executions[UUID(run_id)]._stop
    go_on.set()
    assert (await terminal(run_id)).status == "cancelled"
    assert stage.provider.calls == []
    assert [message.content for message in await stage.state()][:6] == [
        "Be brief.", "What is the weather?", "", "sunny", "It is sunny.", "And tomorrow?"
    ]  # fmt: skip
    await stage.assert_next_completes()


async def test_a_retried_first_turn_keeps_the_seed_once(stage):
    stage.script.add(say("Rain."), say("Hail."))
    run_id = await begin(stage)
    await terminal(run_id)
    again = await in_thread(operations.retry, stage.owner, run_id, "And on Monday?")
    await terminal(again["id"])
    assert words(stage.provider.calls[-1].messages) == [*SENT, ("user", "And on Monday?")]
    assert [message["text"] for message in await stage.history()][-2:] == ["And on Monday?", "Hail."]


async def test_a_seed_with_orphans_is_made_sendable(stage):
    asked = [{"name": "weather", "args": {}, "id": "w1", "type": "tool_call"}]
    seed = [HumanMessage("one"), AIMessage("", tool_calls=asked), HumanMessage("two"),
            ToolMessage("of nobody", tool_call_id="w9")]  # fmt: skip
    stage.script.add(say("Fine."))
    assert (await terminal(await begin(stage, seed=seed))).status == "completed"
    roles = [message["role"] for message in stage.provider.calls[0].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "user"]
    await stage.assert_sendable()


async def test_a_tool_turn_behind_a_seed_is_repaired_like_any_other(stage):
    stage.script.add(call("slow_async", seconds=60))
    run_id = await begin(stage)
    await stage.ledger.ended(1)
    assert (await stage.cancelled(run_id)).status == "cancelled"
    assert [message.content for message in await stage.state()][:2] == ["Be brief.", "What is the weather?"]
    await stage.assert_sendable()
    await stage.assert_next_completes()


# Idempotency


async def test_the_same_key_gives_the_same_run_of_the_same_session(stage):
    stage.script.add(Round(Hold("held"), text("Once.")))
    first, second = await asyncio.gather(begin(stage, key="k"), begin(stage, key="k"))
    assert first == second
    await stage.script.gate("held").reached()
    stage.script.open_all()
    await terminal(first)
    assert await begin(stage, key="k") == first
    assert await Session.objects.filter(origin=Origin.API).acount() == 1
    assert len(stage.provider.calls) == 1


@pytest.mark.parametrize("other", [{"said": "something else"}, {"seed": SEED[:2]}, {"seed": []}])
async def test_the_same_key_with_another_request_is_a_conflict(stage, other):
    await terminal(await begin(stage, key="k"))
    with pytest.raises(IdempotencyConflict):
        await begin(stage, **({"key": "k"} | other))
    assert await Run.objects.acount() == 1


async def test_the_same_key_of_somebody_else_is_another_key(stage, bob):
    await begin(stage, key="k")
    his = await in_thread(operations.start_session, bob, "mine", agent="assistant", key="k")
    assert his["session"] != stage.session
    await terminal(his["id"])


async def test_what_is_refused_leaves_no_session_behind(stage):
    before = await Session.objects.acount()
    with pytest.raises(Invalid):
        await begin(stage, said="   ")
    with pytest.raises(Invalid):
        await begin(stage, key="")
    assert await Session.objects.acount() == before
