"""What the engine knows of the calls of a ToolNode, and what it keeps of them."""

import time

import pytest
from langchain_core.tools import tool

from runs import agents, operations
from runs.foundation.database import in_thread
from runs.models import Run, ToolCall
from tests.fakes import ScriptedModel, calls, plain_graph, say, sync_graph
from tests.runs.harness import open_harness
from tests.runs.waiting import status, terminal, until


def blocking_ask(marks):
    from langgraph.types import interrupt

    @tool
    def slow_ask(question: str, seconds: float = 0) -> str:
        """Ask the user after a while, in a thread."""
        time.sleep(seconds)
        answer = interrupt(question)
        marks.append((question, answer))
        return f"{question} {answer}"

    return slow_ask


async def answer(harness, run_id, value):
    """Answer the one question of the run with this; the question."""
    await until(Run.objects.filter(id=run_id, status="waiting", answers__isnull=True).exists)
    (asked,) = (await harness.run(run_id)).questions
    await in_thread(operations.answer, harness.owner, run_id, {asked["id"]: value})
    return asked["value"]


async def test_the_start_of_a_call_is_committed_before_its_tool_begins(engine, alice, serve, tmp_path):
    seen = []

    @tool
    async def look() -> str:
        """Look for its own start in the database."""
        seen.extend(
            await in_thread(
                list, ToolCall.objects.filter(started_at__isnull=False).values_list("name", flat=True)
            )
        )
        return "seen"

    def build(model, tools):
        return plain_graph(model, [look])

    rounds = [calls(("look", {})), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        assert (await terminal(await harness.start())).status == "completed"
    assert seen == ["look"]


async def test_what_a_call_has_given_is_kept_while_its_sibling_asks(engine, alice, serve, tmp_path):
    rounds = [calls(("mark", {"x": "1"}), ("ask", {"question": "Really?"})), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=plain_graph, rounds=rounds) as harness:
        run_id = await harness.start()
        assert (await answer(harness, run_id, "Yes"))["question"] == "Really?"
        assert (await terminal(run_id)).status == "completed"
        assert sorted(harness.marks.read()) == ["1", "answered Yes"]
        asked = (await harness.history())[1]["tool_calls"]
        assert [call["result"] for call in asked] == ["marked 1", "The user answered Yes."]
        await harness.assert_sendable()


@pytest.mark.parametrize("pauses", [(0, 0.05), (0.05, 0)], ids=["in order", "the second is faster"])
async def test_calls_that_ask_side_by_side_get_their_own_answers(engine, alice, serve, tmp_path, pauses):
    marks = []

    def build(model, tools):
        return plain_graph(model, [blocking_ask(marks)])

    asking = [
        ("slow_ask", {"question": name, "seconds": pause})
        for name, pause in zip(("first", "second"), pauses, strict=True)
    ]
    rounds = [calls(*asking), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        run_id = await harness.start()
        assert await answer(harness, run_id, "one") == "first"
        assert await answer(harness, run_id, "two") == "second"
        ended = await terminal(run_id)
        assert ended.status == "completed", ended.error_message
        asked = (await harness.history())[1]["tool_calls"]
        assert [call["result"] for call in asked] == ["first one", "second two"]
    assert marks == [("first", "one"), ("second", "two")]


async def test_what_a_tool_returns_is_bounded_for_model_and_checkpoint(
    engine, alice, serve, tmp_path, settings
):
    settings.RUNS_RESULT_LIMIT = 1000

    @tool
    def talk() -> str:
        """Return a lot."""
        return "a" * 600 + "b" * 5_000_000 + "c" * 600

    def build(model, tools):
        return plain_graph(model, [talk])

    rounds = [calls(("talk", {})), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        assert (await terminal(await harness.start())).status == "completed"
        (result,) = [message.content for message in await harness.state() if message.type == "tool"]
        assert result.startswith("a" * 600)
        assert result.endswith("c" * 250)
        assert "[left out: 5,000,200 of 5,001,200 characters]" in result
        assert len(result) < 1100
        (asked,) = (await harness.history())[1]["tool_calls"]
        assert asked["result"] == result


@pytest.mark.parametrize("raised", [SystemExit(2), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "on the loop"])
async def test_a_tool_that_tries_to_exit_has_failed_and_the_turn_goes_on(
    engine, alice, serve, tmp_path, raised, is_async
):
    if is_async:

        @tool
        async def leave() -> str:
            """Raise."""
            raise raised
    else:

        @tool
        def leave() -> str:
            """Raise."""
            raise raised

    def build(model, tools):
        return plain_graph(model, [leave])

    rounds = [calls(("leave", {})), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        ended = await terminal(await harness.start())
        assert ended.status == "completed", ended.error_message
        (asked,) = (await harness.history())[1]["tool_calls"]
        assert asked["status"] == "failed"
        assert type(raised).__name__ in asked["error"]


def test_an_agent_knows_the_tools_of_all_its_tool_nodes(serve, settings):
    inner = plain_graph(ScriptedModel(), [blocking_ask([])]).compile()

    @tool
    def delegate(task: str) -> str:
        """Let another agent do it."""
        return str(inner.invoke({"messages": [("user", task)]})["messages"][-1].text)

    serve(lambda: plain_graph(ScriptedModel(), [delegate]))
    assert agents.load(agents.names()[0]).gated_tools == {"delegate", "slow_ask"}


async def test_a_call_of_an_agent_in_a_thread_is_committed_too(engine, alice, serve, tmp_path):
    """The inner agent is called by a synchronous tool, so its ToolNode runs in threads."""
    seen = []

    @tool
    def look() -> str:
        """Look for its own start in the database."""
        seen.extend(ToolCall.objects.filter(started_at__isnull=False).values_list("name", flat=True))
        return "seen"

    def build(model, tools):
        inner = sync_graph(model, [look]).compile()

        @tool
        def delegate(task: str) -> str:
            """Let another agent do it."""
            return str(inner.invoke({"messages": [("user", task)]})["messages"][-1].text)

        return plain_graph(model, [delegate])

    rounds = [
        calls(("delegate", {"task": "look"})),
        calls(("look", {})),
        say("Seen it."),
        say("Done."),
    ]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        ended = await terminal(await harness.start())
        assert ended.status == "completed", ended.error_message
        assert await status(ended.id, "completed")
    assert sorted(seen) == ["delegate", "look"]
