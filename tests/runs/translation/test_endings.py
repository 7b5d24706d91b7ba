"""Questions, and turns that are cut: what the log says of what was open."""

import asyncio

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy

from runs.states import RunStatus
from runs.translation.tools import CallState
from runs.translation.translator import LoggedBefore
from tests.runs.translation.execution import RUN, Execution
from tests.runs.translation.recorder import ENDS, Recorder
from tests.runs.translation.scripted import ScriptedModel, agent, echo, hanging, spelled, words

# Questions


async def test_a_question_is_asked_once_and_its_tool_goes_on_after_the_answer():
    model = ScriptedModel(
        rounds=[spelled(("c1", "ask", '{"text": "ok?"}'), ("c2", "echo", '{"text": "x"}')), words("Done")]
    )
    inner = agent(model).compile()
    graph = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    first = Execution(graph)
    before = await first.run()
    (question,) = first.translator.questions
    assert question["value"] == {"question": "ok?"}
    assert first.translator.tools.open == {}
    assert "tool.cancelled" not in before.types
    known = known_of(before)
    second = Execution(graph, first.saver, known=known)
    after = await second.run(Command(resume={question["id"]: "yes"}))
    assert second.translator.questions == []
    assert after.types == ["tool.completed", "message.started", "message.delta", "message.completed"]
    assert after.of("tool.completed")[0]["result"] == "they said yes"
    assert before.counts["tool_calls"] + after.counts["tool_calls"] == 2
    assert before.counts["message_count"] + after.counts["message_count"] == 4


def known_of(recorder: Recorder) -> LoggedBefore:
    """What the engine reads back from the log of an earlier execution."""
    started = {data["tool_call"] for data in recorder.of("tool.started")}
    ended = {data["tool_call"] for data in recorder.of(*ENDS)}
    completed = recorder.of("message.completed")
    return LoggedBefore(
        messages=frozenset(data["message"] for data in completed),
        calls=tuple(
            CallState(
                call["id"],
                data["message"],
                call["name"],
                call["args"],
                call["id"] in started,
                call["id"] in ended,
            )
            for data in completed
            for call in data["tool_calls"]
        ),
    )


async def test_calls_of_an_earlier_execution_end_when_this_one_is_cancelled():
    known = LoggedBefore(
        messages=frozenset({"m"}),
        calls=(
            CallState("ran", "m", "echo", {}, started=True, ended=True),
            CallState("open", "m", "echo", {}, started=True, ended=False),
            CallState("lost", "m", "echo", {}, started=False, ended=False, may_have_begun=True),
            CallState("asked", "m", "echo", {}, started=False, ended=False),
        ),
    )
    execution = Execution(agent(ScriptedModel(rounds=[])), known=known)
    execution.close(RunStatus.CANCELLED)
    assert execution.recorder.of("tool.cancelled") == [
        {"tool_call": "open", "effect": "unknown"},
        {"tool_call": "lost", "effect": "unknown"},
        {"tool_call": "asked", "effect": "none"},
    ]
    assert execution.recorder.texts == ["(Stopped before an answer was given.)"]


# Turns that do not complete


async def test_a_cancelled_answer_keeps_exactly_the_text_that_was_told():
    model = ScriptedModel(rounds=[[*words("one ", "two ", usage=None), asyncio.Event(), *words("three")]])
    execution = Execution(agent(model))
    recorder = await execution.cancel_when(lambda recorder: len(recorder.of("message.delta")) == 2)
    (completed,) = recorder.of("message.completed")
    assert completed["text"] == "one two "
    assert completed["status"] == "interrupted"
    assert completed["usage"] is None
    assert recorder.counts["llm_calls"] == 1
    assert recorder.counts["tokens_estimated"] == 1
    assert recorder.counts["input_tokens"] > 0
    assert recorder.counts["output_tokens"] == 2
    assert recorder.counts["message_count"] == 1


@pytest.mark.parametrize("pieces", [1, 2, 3])
async def test_a_call_that_was_still_being_spelled_out_is_dropped(pieces: int):
    asked = spelled(("c1", "echo", '{"text": "x"}'))
    model = ScriptedModel(
        rounds=[[*words("Let me. ", usage=None), *asked[:pieces], asyncio.Event(), *asked[pieces:]]]
    )
    execution = Execution(agent(model))
    recorder = await execution.cancel_when(
        lambda recorder: model.calls == 1 and bool(recorder.of("message.delta"))
    )
    (completed,) = recorder.of("message.completed")
    assert completed["text"] == "Let me. "
    assert completed["tool_calls"] == []
    assert not recorder.of("tool.started", *ENDS)


async def test_a_call_cut_without_any_text_leaves_a_note_and_no_empty_message():
    asked = spelled(("c1", "echo", '{"text": "x"}'))
    reached = asyncio.Event()

    class Marked(asyncio.Event):
        async def wait(self) -> bool:
            reached.set()
            return await super().wait()

    execution = Execution(agent(ScriptedModel(rounds=[[*asked[:3], Marked()]])))
    recorder = await execution.cancel_when(lambda _: reached.is_set())
    assert recorder.texts == ["(Stopped before an answer was given.)"]
    assert recorder.of("message.completed")[0]["message"] == f"{RUN}:note"
    assert recorder.of("message.completed")[0]["status"] == "interrupted"
    assert recorder.counts["output_tokens"] > 0


async def test_a_cancel_in_the_tools_tells_what_ran_from_what_did_not():
    """One result has arrived, one tool takes its CancelledError, one call is refused before it starts."""
    waiting = asyncio.Event()

    asked = spelled(("done", "echo", '{"text": "x"}'), ("hung", "hang", '{"text": "x"}'))
    execution = Execution(agent(ScriptedModel(rounds=[asked]), [echo, hanging(waiting)]))
    recorder = await execution.cancel_when(
        lambda recorder: waiting.is_set() and bool(recorder.of("tool.completed"))
    )
    assert [data["tool_call"] for data in recorder.of("tool.completed")] == ["done"]
    assert recorder.of("tool.cancelled") == [{"tool_call": "hung", "effect": "unknown"}]
    assert recorder.texts == ["", "(Stopped before an answer was given.)"]
    assert recorder.counts["message_count"] == 4
    assert execution.translator.tools.open == {}


async def test_a_call_that_never_started_has_no_effect():
    graph = agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))]))
    reached = asyncio.Event()

    async def before_tools(state: MessagesState) -> None:
        reached.set()
        await asyncio.Event().wait()

    graph.branches["agent"].clear()
    graph.add_node("before", before_tools).add_edge("agent", "before").add_edge("before", "tools")
    execution = Execution(graph)
    recorder = await execution.cancel_when(lambda _: reached.is_set())
    assert recorder.of(*ENDS) == [{"tool_call": "c1", "effect": "none"}]
    assert recorder.texts[-1] == "(Stopped before an answer was given.)"


async def test_a_result_that_arrived_and_was_not_told_yet_is_told_at_the_end():
    returned = asyncio.Event()
    model = ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))])
    execution = Execution(agent(model), on_result=lambda call_id: returned.set())
    stream = execution.stream()
    async for namespace, mode, payload in stream:
        if mode == "tools":  # from here on everything stays in the queue
            await asyncio.wait_for(returned.wait(), 10)
            break
        execution.translator.feed(namespace, mode, payload)
    await stream.aclose()
    execution.close(RunStatus.CANCELLED)
    assert execution.recorder.of("tool.completed")[0]["result"] == "echo x"


async def test_a_step_limit_between_a_call_and_its_result_leaves_no_call_open():
    execution = Execution(agent(ScriptedModel(rounds=[spelled(("c1", "echo", '{"text": "x"}'))])))
    with pytest.raises(RecursionError):
        await execution.run(recursion_limit=1)
    execution.close(RunStatus.FAILED)
    assert execution.recorder.of("tool.cancelled") == [{"tool_call": "c1", "effect": "none"}]
    assert execution.recorder.texts == ["", "(The turn failed before an answer was given.)"]


async def test_a_retried_model_leaves_its_interrupted_message_and_counts_both_calls():
    model = ScriptedModel(rounds=[[*words("Half", usage=None), ConnectionError("gone")], words("Whole")])
    graph = agent(model)
    graph.nodes["agent"].retry_policy = RetryPolicy(initial_interval=0.0, jitter=False)  # type: ignore[assignment]
    recorder = await Execution(graph).run()
    assert recorder.texts == ["Half", "Whole"]
    assert [data["status"] for data in recorder.of("message.completed")] == ["interrupted", "complete"]
    assert recorder.counts["llm_calls"] == 2
    assert recorder.counts["tokens_estimated"] == 1


async def test_a_failing_provider_keeps_the_partial_text_and_needs_no_note():
    model = ScriptedModel(rounds=[[*words("Half", usage=None), ConnectionError("gone")]])
    execution = Execution(agent(model))
    with pytest.raises(ConnectionError):
        await execution.run()
    execution.close(RunStatus.FAILED)
    assert execution.recorder.texts == ["Half"]
    assert len(execution.translator.messages.meter.open) == 0


async def test_a_turn_that_never_began_gets_its_note():
    execution = Execution(agent(ScriptedModel(rounds=[])))
    execution.close(RunStatus.CANCELLED)
    execution.close(RunStatus.FAILED)
    assert execution.recorder.types == ["message.started", "message.completed"]
    assert execution.recorder.counts == {"message_count": 1}


async def test_nothing_is_told_after_the_end():
    execution = Execution(agent(ScriptedModel(rounds=[words("late")])))
    execution.close(RunStatus.CANCELLED)
    told = list(execution.recorder.events)
    await execution.run(status=None)
    assert execution.recorder.events == told
    assert "llm_calls" not in execution.recorder.counts
