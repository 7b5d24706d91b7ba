"""Turns that fail: a code, a sentence, partial text kept, and the next message works."""

import asyncio

import pytest

from runs.foundation.database import in_thread
from runs.models import ToolCall
from runs.wire import representations
from tests.fakes import (
    SHAPES,
    Disconnect,
    Failure,
    Round,
    Silence,
    call,
    fan_out_graph,
    numbered,
    plain_graph,
    say,
)
from tests.runs.harness import open_harness
from tests.runs.waiting import log_of, terminal


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


@pytest.mark.parametrize(
    ("status", "words"), [(401, "credentials"), (429, "busy"), (500, "error of its own"), (400, "refused")]
)
async def test_a_provider_that_refuses_fails_the_turn_with_a_sentence(harness, status, words):
    harness.script.add(Round(Failure(status, "no")))

    ended = await terminal(await harness.start())

    assert (ended.status, ended.error_code) == ("failed", "provider")
    assert words in ended.error_message
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_a_connection_that_breaks_keeps_the_partial_text(harness):
    harness.script.add(Round(numbered(5), Disconnect()))

    ended = await terminal(await harness.start())

    assert (ended.status, ended.error_code) == ("failed", "provider")
    answer = (await harness.history())[-1]
    assert (answer["text"], answer["status"]) == ("w1 w2 w3 w4 w5", "interrupted")
    assert ended.tokens_estimated is True
    await harness.assert_next_completes()
    assert harness.provider.calls[-1].messages[-2]["content"] == "w1 w2 w3 w4 w5"


@pytest.mark.parametrize("before", [0, 3])
async def test_a_silent_provider_ends_the_turn(harness, settings, before):
    settings.RUNS_IDLE_TIMEOUT = 0.5
    harness.script.add(Round(numbered(before) if before else [], Silence(keep_alive=0.1)))

    ended = await terminal(await harness.start())

    assert (ended.status, ended.error_code) == ("failed", "provider")
    assert "said nothing" in ended.error_message
    await harness.ledger.ended(1)
    assert harness.provider.calls[0].outcome == "closed"
    await harness.assert_next_completes()


async def test_an_exception_in_the_graph_is_internal_and_says_no_more(engine, alice, serve, tmp_path):
    def build(model, tools):
        graph = fan_out_graph(model, tools)

        def broken(state):
            raise RuntimeError("secret of the server")

        graph.nodes.pop("llm_call")
        graph.add_node("llm_call", broken)
        return graph

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        ended = await terminal(await harness.start())

        assert (ended.status, ended.error_code) == ("failed", "internal")
        assert "secret" not in ended.error_message
        await harness.assert_sendable()


async def test_a_tool_that_raises_in_a_graph_that_does_not_handle_it(engine, alice, serve, tmp_path):
    def build(model, tools):
        return plain_graph(model, tools, handle_tool_errors=False)

    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(call("boom", message="the tool broke"))
        ended = await terminal(await harness.start())

        assert (ended.status, ended.error_code) == ("failed", "tool")
        assert ended.error_message.startswith("A tool failed")
        assert "the tool broke" not in ended.error_message
        assert "Boom: the tool broke" in ended.error_details
        await harness.assert_sendable()
        await harness.assert_next_completes()


@pytest.mark.parametrize("build", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("limit", [6, 7])
async def test_the_step_limit_names_itself_and_leaves_a_sendable_history(
    engine, alice, serve, tmp_path, settings, build, limit
):
    settings.RUNS_STEP_LIMIT = limit
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        for n in range(10):
            harness.script.add(call("mark", x=str(n)))

        ended = await terminal(await harness.start())

        assert (ended.status, ended.error_code) == ("failed", "step_limit")
        assert str(limit) in ended.error_message
        rows = await in_thread(lambda: list(ToolCall.objects.filter(effect="done")))
        assert len(rows) == len(harness.marks.read())
        await harness.assert_sendable()
        await harness.assert_next_completes()


async def test_the_deadline_of_a_run(harness, settings):
    settings.RUNS_RUN_TIMEOUT = 0.5
    harness.script.add(call("heeding_sync", seconds=60))

    ended = await terminal(await harness.start())

    assert (ended.status, ended.error_code) == ("failed", "timeout")
    await harness.assert_next_completes()


async def test_the_time_limit_of_a_tool(harness, settings):
    settings.RUNS_TOOL_TIMEOUT = 0.5
    harness.script.add(call("heeding_sync", seconds=60))

    ended = await terminal(await harness.start())

    assert (ended.status, ended.error_code) == ("failed", "timeout")
    assert "heeding_sync" in ended.error_message
    await harness.assert_next_completes()


@pytest.mark.parametrize("build", SHAPES.values(), ids=SHAPES)
async def test_nul_in_model_text_and_tool_results_is_replaced(engine, alice, serve, tmp_path, build):
    async with open_harness(alice, serve, tmp_path / "marks", build=build) as harness:
        harness.script.add(call("mark", x="a\0b"), say("nul \0 inside \ud800 alone"))
        ended = await terminal(await harness.start())

        assert ended.status == "completed", ended.error_message
        log = await log_of(ended.id)
        assert not any("\0" in str(event.data) for event in log)
        assert "nul \ufffd inside" in (await harness.history())[-1]["text"]


async def test_the_books_equal_the_providers_ledger(harness):
    from tests.fakes import Usage

    harness.script.add(call("mark", x="1", usage=Usage(100, 20)), say("Done.", usage=Usage(150, 30)))

    ended = await terminal(await harness.start())

    assert (ended.llm_calls, ended.tool_calls, ended.message_count) == (2, 1, 4)
    assert (ended.input_tokens, ended.output_tokens) == (250, 50)
    assert (ended.input_tokens, ended.output_tokens) == (
        harness.ledger.prompt_tokens,
        harness.ledger.completion_tokens,
    )
    assert ended.tokens_estimated is False


async def test_a_sessions_numbers_are_the_sum_of_its_runs(harness):
    from runs import operations

    for n in range(3):
        harness.script.add(call("mark", x=str(n)), say("Done."))
        await terminal(await harness.start())
        harness.script.clear()
    runs = await in_thread(
        lambda: representations.runs(list(operations.runs_of(harness.owner, harness.session)))
    )
    session = await in_thread(operations.session_snapshot, harness.owner, harness.session)

    for name in ("message_count", "llm_calls", "tool_calls", "input_tokens", "output_tokens", "duration_ms"):
        assert session["statistics"][name] == sum(run["statistics"][name] for run in runs)
    assert session["statistics"]["runs"] == 3


async def test_an_agent_that_is_not_configured_takes_no_turns_but_stays_readable(harness, serve):
    from runs import operations
    from runs.errors import AgentMismatch

    harness.script.add(say("Before."))
    await terminal(await harness.start())
    serve(other=lambda: None)

    with pytest.raises(AgentMismatch):
        await harness.start()
    assert (await harness.history())[-1]["text"] == "Before."
    assert (await in_thread(operations.session_snapshot, harness.owner, harness.session))[
        "agent"
    ] == "assistant"


async def test_many_sessions_at_once_do_not_mix(harness):
    async def one(n):
        session = await in_thread(__import__("runs.operations", fromlist=["x"]).create_session, harness.owner)
        return session["id"]

    sessions = await asyncio.gather(*(one(n) for n in range(8)))
    for n in range(8):
        harness.script.add(say(f"answer {n}"), marker=f"question {n}.")
    from runs import operations

    runs = await asyncio.gather(
        *(
            in_thread(operations.start_turn, harness.owner, session, f"question {n}.")
            for n, session in enumerate(sessions)
        )
    )
    for n, run in enumerate(runs):
        assert (await terminal(run["id"])).status == "completed"
        history = await operations.history(harness.owner, sessions[n])
        assert history["messages"][-1]["text"] == f"answer {n}"


@pytest.mark.parametrize("arguments", ['["x"]', "null", '"s"', '{"x": '])
async def test_a_graph_that_ends_on_a_broken_call_does_not_succeed_in_silence(harness, arguments):
    from tests.fakes import calls

    harness.script.add(calls(("mark", arguments)), say("Recovered."))

    ended = await terminal(await harness.start())

    history = await harness.history()
    assert ended.status == "failed" or history[-1]["text"]
    await harness.assert_sendable()
    await harness.assert_next_completes()


async def test_a_tool_that_obeys_the_token_is_cancelled_and_not_failed(harness):
    from runs import operations

    harness.script.add(call("heeding_sync", seconds=60))
    run_id = await harness.start()
    await harness.marks.seen("heeding_sync started")
    await in_thread(operations.cancel_run, harness.owner, run_id)
    await terminal(run_id)

    row = await in_thread(ToolCall.objects.get)
    assert (row.status, row.effect, row.error) == ("cancelled", "unknown", None)


async def test_a_huge_number_in_an_argument_does_not_spoil_the_session(harness):
    harness.script.add(call("mark", x=2**80), say("Done."))

    ended = await terminal(await harness.start())

    assert ended.status in ("failed", "completed")
    await harness.assert_next_completes()
