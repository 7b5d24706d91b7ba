"""Executions on real graphs, in this process."""

from runs import operations
from runs.foundation.database import in_thread
from tests.fakes import Marks, ScriptedModel, call, fan_out_graph, say, tools
from tests.runs.waiting import log_of, terminal


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
