"""Names and ids that are longer than their columns cost no turn."""

import pytest

from tests.fakes import Round, say, spelled
from tests.runs.waiting import event, log_of, terminal

pytestmark = pytest.mark.services("about the connections and locks of PostgreSQL")


async def test_a_tool_that_a_model_calls_by_an_endless_name_costs_no_turn(harness):
    harness.script.add(Round(spelled("mark" * 60, {"x": "1"})), say("Done."))
    ended = await terminal(await harness.start())

    assert ended.status == "completed", ended.error_message
    (asked,) = (await harness.history())[1]["tool_calls"]
    logged = [one.data for one in await log_of(ended.id) if one.type == "message.completed"]
    assert asked["name"] == logged[0]["tool_calls"][0]["name"]
    assert asked["status"] == "failed"
    await harness.assert_sendable()


@pytest.mark.parametrize("call_id", ["call_" + "x" * 300, "".join(map(str, range(3000)))])
@pytest.mark.parametrize("takes", ["no time", "a while"])
async def test_a_tool_call_with_an_id_of_any_length_costs_no_turn(harness, call_id, takes):
    harness.script.add(Round(spelled("held_async", {"mark": "go on"}, id=call_id)), say("Done."))
    if takes == "no time":
        harness.marks.write("go on")
    run_id = await harness.start()
    if takes == "a while":
        await event(run_id, "tool.started")
        harness.marks.write("go on")
    ended = await terminal(run_id)

    assert ended.status == "completed", ended.error_message
    (shown,) = (await harness.history())[1]["tool_calls"]
    assert (shown["id"], shown["status"]) == (call_id, "completed")
    told = {one.data["tool_call"] for one in await log_of(ended.id) if one.type.startswith("tool.")}
    assert told == {call_id}
    await harness.assert_next_completes()
