"""Executions on real graphs, in this process."""

import asyncio

import pytest

from runs import operations, operators
from runs.foundation.database import in_thread
from runs.lifecycle import queue
from runs.models import Cancellation
from tests.fakes import Marks, Round, ScriptedModel, Silence, call, fan_out_graph, say, tools
from tests.runs.waiting import PATIENCE, at_rest, log_of, terminal


async def test_a_turn_runs_to_its_end_and_says_so_in_the_log(engine, serve, alice):
    serve(lambda: fan_out_graph(ScriptedModel(say("Hello there, world."))))
    session = await in_thread(operations.create_session, alice)

    run = await in_thread(operations.start_turn, alice, session["id"], "hi")

    ended = await terminal(run["id"])
    assert ended.status == "completed", ended.error_message
    log = await log_of(run["id"])
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert log[0].type == "run.queued"
    assert log[1].type == "run.started"
    assert "".join(e.data["text"] for e in log if e.type == "message.delta") == "Hello there, world."
    assert log[-1].type == "run.completed"
    assert ended.message_count == 2


async def test_tools_run_and_their_results_are_kept(engine, serve, alice, tmp_path):
    marks = Marks(tmp_path / "marks")
    serve(lambda: fan_out_graph(ScriptedModel(call("mark", x="one"), say("Done.")), tools(marks)))
    session = await in_thread(operations.create_session, alice)

    run = await in_thread(operations.start_turn, alice, session["id"], "mark one")

    ended = await terminal(run["id"])
    assert ended.status == "completed", ended.error_message
    assert marks.read() == ["one"]
    assert (ended.llm_calls, ended.tool_calls, ended.message_count) == (2, 1, 4)


@pytest.mark.parametrize("force", [False, True], ids=["cancel", "force-cancel"])
async def test_a_cancel_between_the_claim_and_the_execution_stops_it(
    engine, serve, alice, olivia, monkeypatch, force
):
    """The claim is committed, its execution does not exist yet. No heartbeat helps."""
    model = ScriptedModel(Round(Silence()))
    serve(lambda: fan_out_graph(model))
    claim = queue.claim

    def claim_and_be_cancelled(session_id, worker_id):
        run = claim(session_id, worker_id)
        if run is None:
            return None
        if force:
            operators.force_cancel(olivia, run.id, "now")
        else:
            operations.cancel_run(alice, run.id)
        return run

    monkeypatch.setattr(queue, "claim", claim_and_be_cancelled)
    monkeypatch.setattr(engine, "_marks", list)
    session = await in_thread(operations.create_session, alice)
    run = await in_thread(operations.start_turn, alice, session["id"], "hi")

    assert (await terminal(run["id"])).status == "cancelled"
    async with asyncio.timeout(10 * PATIENCE):
        await at_rest(engine)
    assert (await in_thread(Cancellation.objects.get)).outcome == ("reconciled" if force else "cancelled")
    assert model.script.left == 1
    assert engine._early_stops == {}
