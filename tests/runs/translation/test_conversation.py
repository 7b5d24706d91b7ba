"""Which messages of a turn are answers, and which are work on the way."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from runs.states import RunStatus
from runs.translation.conversation import Told
from runs.translation.translator import LoggedBefore
from tests.runs.translation.execution import Execution
from tests.runs.translation.recorder import Recorder
from tests.runs.translation.scripted import ScriptedModel, agent, spelled, words


def steps(*nodes: Any, **options: Any) -> StateGraph[Any, Any, Any, Any]:
    """Nodes one after the other."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    names = [START, *(node.__name__ for node in nodes)]
    for before, node in zip(names, nodes, strict=False):
        graph.add_node(node, **options)
        graph.add_edge(before, node.__name__)
    return graph


def told(recorder: Recorder) -> list[tuple[str, str]]:
    """(text, audience) of each message, as they are in the end."""
    found = {data["message"]: [data["text"], ""] for data in recorder.of("message.completed")}
    for data in recorder.of("message.started", "message.changed"):
        if "text" in data:
            found[data["message"]][0] = data["text"]
        if "audience" in data:
            found[data["message"]][1] = data["audience"]
    return [(text, audience) for text, audience in found.values()]


async def test_what_the_graph_does_not_keep_becomes_work_when_its_step_ends():
    model = ScriptedModel(rounds=[words("left"), words("Here you are.")])

    async def route(state: MessagesState) -> None:
        await model.ainvoke(state["messages"])

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    recorder = await Execution(steps(route, reply)).run()
    assert told(recorder) == [("left", "work"), ("Here you are.", "answer")]
    (changed,) = recorder.of("message.changed")
    assert changed["audience"] == "work"
    assert recorder.types.index("message.changed") == 3, "before the next model speaks"


async def test_a_message_that_no_model_streams_is_told_in_whatever_form_a_node_gives_it():
    def plain(state: MessagesState) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": "a dictionary"}]}

    def pair(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "a pair")]}

    def whole(state: MessagesState) -> dict[str, Any]:
        return {"messages": AIMessage("a message")}

    recorder = await Execution(steps(plain, pair, whole)).run()
    assert told(recorder) == [("a dictionary", "answer"), ("a pair", "answer"), ("a message", "answer")]


async def test_a_result_that_a_node_gives_as_data_is_that_of_its_call():
    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[{"id": "c", "name": "look", "args": {}}])]}

    def look(state: MessagesState) -> dict[str, Any]:
        return {"messages": [{"role": "tool", "content": "found", "tool_call_id": "c"}]}

    recorder = await Execution(steps(ask, look)).run()
    assert recorder.of("tool.completed")[0]["result"] == "found"


async def test_an_attempt_that_broke_off_and_was_made_again_becomes_work():
    model = ScriptedModel(rounds=[[AIMessageChunk("Hal"), ConnectionError()], words("Half and whole.")])

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    recorder = await Execution(steps(reply, retry_policy=policy)).run()
    assert told(recorder) == [("Hal", "work"), ("Half and whole.", "answer")]


async def test_a_text_that_a_later_step_rewrites_is_changed():
    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("The key is 1234.", id="m")]}

    async def guard(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("The key is ****.", id="m")]}

    recorder = await Execution(steps(reply, guard)).run()
    assert told(recorder) == [("The key is ****.", "answer")]


async def test_a_message_that_is_removed_by_its_id_in_the_same_turn_is_work():
    async def draft(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("A draft.", id="m")]}

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage("m"), AIMessage("The answer.", id="n")]}

    recorder = await Execution(steps(draft, reply)).run()
    assert told(recorder) == [("A draft.", "work"), ("The answer.", "answer")]


async def test_a_graph_that_shortens_its_memory_takes_no_word_back():
    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("The answer.", id="m")]}

    async def shorten(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), HumanMessage("Summary.", id="s")]}

    recorder = await Execution(steps(reply, shorten)).run()
    assert told(recorder) == [("The answer.", "answer")]


async def test_what_an_agent_says_inside_a_tool_is_work_from_the_start():
    inner = agent(ScriptedModel(rounds=[words("I think.")])).compile()

    @tool
    async def consult(text: str) -> str:
        """Ask another agent."""
        found = await inner.ainvoke({"messages": [HumanMessage(text)]})
        return str(found["messages"][-1].content)

    @tool
    async def think(text: str) -> str:
        """Ask a model."""
        return str((await ScriptedModel(rounds=[words("Hm.")]).ainvoke(text)).content)

    calls = [("c1", "consult", '{"text": "x"}'), ("c2", "think", '{"text": "x"}')]
    model = ScriptedModel(rounds=[spelled(*calls), words("Done.")])

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("agent", call_model)
    graph.add_node("tools", ToolNode([consult, think]))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    recorder = await Execution(graph).run()
    assert sorted(told(recorder)) == [
        ("", "answer"), ("Done.", "answer"), ("Hm.", "work"), ("I think.", "work")
    ]  # fmt: skip
    assert not recorder.of("message.changed"), "known from the start"


async def test_the_answer_of_a_subgraph_is_an_answer():
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("sub", agent(ScriptedModel(rounds=[words("From below.")])).compile())
    graph.add_edge(START, "sub")
    assert told(await Execution(graph).run()) == [("From below.", "answer")]


async def test_beside_a_question_nothing_is_decided_and_nothing_told_twice():
    """The state beside a question has new ids in each reading, since its step has not ended."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", f"You said {interrupt('Well?')}")]}

    def beside(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", "Meanwhile.")]}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    for node in (ask, beside):
        graph.add_node(node)
        graph.add_edge(START, node.__name__)
    execution = Execution(graph)
    assert told(await execution.run()) == []
    again = Execution(graph, execution.saver)
    assert told(await again.run(Command(resume="yes"))) == [
        ("You said yes", "answer"), ("Meanwhile.", "answer")
    ]  # fmt: skip


@pytest.mark.parametrize("is_open", [True, False])
async def test_only_what_a_step_in_progress_said_before_a_crash_can_become_work(is_open):
    """A message of an older step may have been removed since, to keep the memory short."""
    saver = InMemorySaver()

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("The answer.", id="n")]}

    known = LoggedBefore(frozenset({"m"}), told={"m": Told("Said before.", task="reply:1")})
    execution = Execution(steps(reply), saver, known=known)
    execution.translator.conversation.go_on(["reply:1"] if is_open else [])
    recorder = await execution.run()
    changed = [(data["message"], data["audience"]) for data in recorder.of("message.changed")]
    assert changed == ([("m", "work")] if is_open else [])


async def test_a_cut_turn_whose_words_were_work_ends_with_a_note():
    model = ScriptedModel(rounds=[words("left")])

    async def route(state: MessagesState) -> None:
        await model.ainvoke(state["messages"])

    async def never(state: MessagesState) -> None:
        raise ValueError("never")

    execution = Execution(steps(route, never))
    with pytest.raises(ValueError, match="never"):
        await execution.run(status=None)
    execution.close(RunStatus.FAILED)
    assert told(execution.recorder) == [
        ("left", "work"), ("(The turn failed before an answer was given.)", "answer")
    ]  # fmt: skip


async def test_a_tool_message_alone_changes_nothing():
    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolMessage("lost", tool_call_id="nobody"), AIMessage("The answer.")]}

    assert told(await Execution(steps(reply)).run()) == [("The answer.", "answer")]
