"""Questions of whole turns: in order, each with its own answer, and asked again when an answer is refused."""

import asyncio
import operator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from typing_extensions import TypedDict

from runs import operations
from runs.agents import AnswerRefused
from runs.foundation.database import in_thread
from runs.worker.ending import StopReason
from tests.fakes import ScriptedModel, call, calls, say
from tests.fakes.errors import SECRET_TEXT, SECRETS
from tests.runs.waiting import log_of, status, terminal, until


class State(MessagesState):
    given: Annotated[list[Any], operator.add]


class Answer(TypedDict):
    keep: bool


def graph_of(**nodes):
    """A graph whose nodes run side by side; each gets the answers it was given into ``given``."""
    graph = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


def asking(*asked, allowed=("yes",), error=ValueError, seconds=0.0):
    """A node that asks these one after the other, and raises ``error`` for an answer it does not allow."""

    async def ask(state):
        await asyncio.sleep(seconds)
        given = [interrupt(question) for question in asked]
        if not set(given) <= set(allowed):
            raise error("No such answer.")
        return {"given": given, "messages": [AIMessage(f"I was told {', '.join(given)}.")]}

    return ask


@pytest.fixture
def turn(engine, alice, serve):
    """``await turn(build)`` starts a turn of the agent; its run."""

    async def start(build):
        serve(build)
        session = await in_thread(operations.create_session, alice)
        return await in_thread(operations.start_turn, alice, session["id"], "go")

    return start


@pytest.fixture
def answer(alice):
    async def give(run, *values):
        """Answer what the run asks, in order, and wait until it asks again or ends."""
        waits = await status(run["id"], "waiting")
        asked = [question["id"] for question in waits.questions]
        answers = dict(zip(asked, values, strict=True))
        await in_thread(operations.answer, alice, run["id"], answers)

        def rests():
            found = operations.get_run(alice, run["id"])
            return found if found["questions"] or found["finished_at"] else None

        return await until(rests, what="the next question, or the end")

    return give


async def waits_of(run):
    """The data of each ``run.waiting``."""
    return [event.data for event in await log_of(run["id"]) if event.type == "run.waiting"]


async def texts(alice, run):
    history = await operations.history(alice, run["session"])
    return [message["text"] for message in history["messages"]]


async def test_questions_stand_in_the_run_while_it_waits_for_an_answer(alice, turn, answer):
    run = await turn(lambda: graph_of(ask=asking({"question": "Go?"})))
    await status(run["id"], "waiting")

    found = await in_thread(operations.get_run, alice, run["id"])
    snapshot = await in_thread(operations.session_snapshot, alice, run["session"])

    assert [question["value"] for question in found["questions"]] == [{"question": "Go?"}]
    assert snapshot["active_run"]["questions"] == found["questions"]
    assert run["questions"] is None
    ended = await answer(run, "yes")
    assert (ended["status"], ended["questions"]) == ("completed", None)


@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError])
async def test_a_refused_answer_is_asked_again_and_the_next_one_counts(alice, turn, answer, error):
    run = await turn(lambda: graph_of(ask=asking("Go?", error=error)))

    for _ in range(2):
        again = await answer(run, "perhaps")
        assert (again["status"], [asked["value"] for asked in again["questions"]]) == ("waiting", ["Go?"])
    assert (await answer(run, "yes"))["status"] == "completed"

    asked, *repeated = await waits_of(run)
    assert "reason" not in asked
    assert [one["questions"] for one in repeated] == [asked["questions"]] * 2
    told = ": No such answer." if error is ValueError else "."
    assert {one["reason"] for one in repeated} == {f"The agent did not accept the answer{told}"}
    assert (await texts(alice, run))[1:] == ["I was told yes."]


async def test_why_an_answer_was_refused_is_told_without_secrets(turn, answer):
    async def ask(state):
        interrupt("Which city?")
        raise ValueError(f"No such city. {SECRET_TEXT}")

    run = await turn(lambda: graph_of(ask=ask))
    assert (await answer(run, "Rome"))["status"] == "waiting"

    reason = (await waits_of(run))[-1]["reason"]
    assert "No such city." in reason
    assert not any(secret in reason for secret in SECRETS)


async def test_of_two_questions_of_one_node_the_second_is_asked_again(alice, turn, answer):
    run = await turn(lambda: graph_of(ask=asking("First?", "Second?", allowed=("a", "b"))))
    await answer(run, "a")

    again = await answer(run, "c")
    assert [asked["value"] for asked in again["questions"]] == ["Second?"]
    assert (await answer(run, "b"))["status"] == "completed"
    assert (await texts(alice, run))[1:] == ["I was told a, b."]


async def test_a_question_in_a_subgraph_is_asked_again(alice, turn, answer):
    run = await turn(lambda: graph_of(inner=graph_of(ask=asking("Go?")).compile()))

    assert (await answer(run, "perhaps"))["questions"]
    assert (await answer(run, "yes"))["status"] == "completed"


async def test_what_fails_behind_an_accepted_answer_fails_the_turn(alice, turn, answer):
    def build():
        def broken(state):
            raise ValueError("This is no fault of the answer.")

        graph = StateGraph(State).add_node("ask", asking("Go?")).add_node("broken", broken)
        inner = graph.add_edge(START, "ask").add_edge("ask", "broken").compile()
        return graph_of(inner=inner)

    run = await turn(build)
    assert (await answer(run, "yes"))["status"] == "failed"
    assert len(await waits_of(run)) == 1


async def test_parallel_questions_come_in_the_order_of_the_graph_and_never_get_mixed(alice, turn, answer):
    build = lambda: graph_of(  # noqa: E731
        slow=asking("Slow?", allowed=("s",), seconds=0.2), quick=asking("Quick?", allowed=("q",))
    )
    run = await turn(build)
    waits = await status(run["id"], "waiting")
    assert [asked["value"] for asked in waits.questions] == ["Slow?", "Quick?"]

    again = await answer(run, "s", "wrong")
    # Whether the slow one came to its end before the other one raised is a matter of time.
    assert [asked["value"] for asked in again["questions"]][-1] == "Quick?"
    ended = await answer(run, *["s"] * (len(again["questions"]) - 1), "q")
    assert ended["status"] == "completed"
    assert sorted((await texts(alice, run))[1:]) == ["I was told q.", "I was told s."]


async def test_an_answer_of_a_turn_that_was_cut_does_not_count_for_the_next_question(
    engine, alice, turn, answer
):
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def ask(state):
        first = interrupt("First?")
        entered.set()
        await go_on.wait()
        return {"messages": [AIMessage(f"{first}, {interrupt('Second?')}")]}

    run = await turn(lambda: graph_of(ask=ask))
    waits = await status(run["id"], "waiting")
    await in_thread(operations.answer, alice, run["id"], {waits.questions[0]["id"]: "one"})
    await entered.wait()
    next(iter(engine.executions.values())).stop(StopReason.SHUTDOWN)
    await terminal(run["id"])
    go_on.set()

    resumed = await in_thread(operations.resume, alice, run["id"])
    waits = await status(resumed["id"], "waiting")
    assert [asked["value"] for asked in waits.questions] == ["Second?"]
    await answer(resumed, "two")
    assert (await texts(alice, resumed))[-1] == "one, two"


@tool
def pay(amount: int) -> str:
    """Pay."""
    answer = interrupt({"question": f"Pay {amount}?"}, response_schema=Answer)
    return f"Paid: {answer['keep']}"


def with_tools(model, tools, *, handles=False):
    async def ask(state):
        return {"messages": [await model.bind_tools(tools).ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=handles))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tools", "model")
    return graph


async def test_a_tool_that_asks_asks_again_and_runs_once(alice, turn, answer):
    model = ScriptedModel()
    model.script.add(call("pay", amount=7), say("Done."))
    run = await turn(lambda: with_tools(model, [pay]))

    again = await answer(run, {"keep": "what"})
    assert again["status"] == "waiting"
    assert (await answer(run, {"keep": True}))["status"] == "completed"

    log = await log_of(run["id"])
    tools = [event.type for event in log if event.type.startswith("tool.")]
    assert tools == ["tool.started", "tool.completed"]
    assert (await waits_of(run))[0]["questions"][0]["response_schema"]["properties"] == {
        "keep": {"title": "Keep", "type": "boolean"}
    }
    assert (await texts(alice, run))[-1] == "Done."


@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_fails_behind_its_question_fails_the_turn(turn, answer, error, is_async):
    """It may have done its work, with an answer that was good: nobody is asked to let it run once more."""
    done: list[str] = []

    def take(amount: int) -> str:
        """Ask, and break afterwards."""
        done.append(interrupt(f"Take {amount}?"))
        raise error("The shop is closed.")

    async def take_on_the_loop(amount: int) -> str:
        """Ask, and break afterwards."""
        return take(amount)

    model = ScriptedModel()
    model.script.add(call("take", amount=7))
    made = tool("take")(take_on_the_loop if is_async else take)
    run = await turn(lambda: with_tools(model, [made]))

    ended = await answer(run, "yes")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "tool")
    assert (len(await waits_of(run)), done) == (1, ["yes"])


@pytest.mark.parametrize("handles", [True, False])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_says_that_it_refuses_an_answer(alice, turn, answer, handles, is_async):
    def take(amount: int) -> str:
        """Ask."""
        if interrupt(f"Take {amount}?") != "yes":
            raise AnswerRefused("Say yes.")
        return "Taken."

    async def take_on_the_loop(amount: int) -> str:
        """Ask."""
        return take(amount)

    model = ScriptedModel()
    model.script.add(call("take", amount=7), say("Done."))
    made = tool("take")(take_on_the_loop if is_async else take)
    run = await turn(lambda: with_tools(model, [made], handles=handles))

    assert (await answer(run, "no"))["status"] == "waiting"
    assert (await waits_of(run))[-1]["reason"] == "The agent did not accept the answer: Say yes."
    assert (await answer(run, "yes"))["status"] == "completed"
    assert (await texts(alice, run))[-1] == "Done."


async def test_an_error_behind_a_model_call_is_no_refusal(turn, answer):
    model = ScriptedModel()
    model.script.add(say("No number."))

    async def ask(state):
        interrupt("Go?")
        return {"given": [int((await model.ainvoke("?")).content)]}

    run = await turn(lambda: graph_of(ask=ask))
    assert (await answer(run, "yes"))["status"] == "failed"


async def test_of_two_tools_that_ask_the_first_runs_once_though_the_second_refuses(alice, turn, answer):
    model = ScriptedModel()
    model.script.add(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), say("Done."))
    run = await turn(lambda: with_tools(model, [pay]))

    second = await answer(run, {"keep": True})
    assert [asked["value"]["question"] for asked in second["questions"]] == ["Pay 2?"]
    again = await answer(run, {"keep": "what"})
    assert [asked["value"]["question"] for asked in again["questions"]] == ["Pay 2?"]
    assert (await answer(run, {"keep": True}))["status"] == "completed"
    tools = [event.type for event in await log_of(run["id"]) if event.type.startswith("tool.")]
    assert sorted(tools) == ["tool.completed"] * 2 + ["tool.started"] * 2
    history = await operations.history(alice, run["session"])
    assert [one["result"] for one in history["messages"][1]["tool_calls"]] == ["Paid: True"] * 2


async def test_a_middleware_inside_a_subgraph_asks_again(turn, answer):
    paid: list[int] = []
    run = await turn(lambda: graph_of(inner=reviewed(paid, "batched")().compile()))

    assert (await answer(run, {"decisions": []}))["questions"]
    assert (await answer(run, {"decisions": [APPROVE, REJECT]}))["status"] == "completed"
    assert paid == [1]


async def test_a_turn_that_asks_again_can_be_cancelled(alice, turn, answer):
    run = await turn(lambda: graph_of(ask=asking("Go?")))
    await answer(run, "perhaps")

    await in_thread(operations.cancel_run, alice, run["id"])
    assert (await terminal(run["id"])).status == "cancelled"


# LangChain's middleware


def reviewed(paid, mode):
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"Paid {amount}."

    model = ScriptedModel()
    model.script.add(calls(("pay", {"amount": 1}), ("pay", {"amount": 2})), say("Done."))
    allowed: Any = ["approve", "edit", "reject"]
    middleware = HumanInTheLoopMiddleware({"pay": {"allowed_decisions": allowed}}, interrupt_mode=mode)
    return lambda: create_agent(model, [pay], middleware=[middleware]).builder


APPROVE = {"type": "approve"}
REJECT = {"type": "reject", "message": "Too much."}
EDIT = {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 5}}}
RESPOND = {"type": "respond", "message": "No."}  # which is not allowed


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [([APPROVE, APPROVE], [1, 2]), ([EDIT, APPROVE], [2, 5]), ([APPROVE, REJECT], [1]), ([REJECT] * 2, [])],
)
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_what_the_reviewer_decided_is_done(alice, turn, answer, mode, decisions, expected):
    paid: list[int] = []
    run = await turn(reviewed(paid, mode))
    values = [{"decisions": decisions}] if mode == "batched" else decisions

    assert (await answer(run, *values))["status"] == "completed"
    assert sorted(paid) == expected
    assert (await texts(alice, run))[-1] == "Done."


@pytest.mark.parametrize(
    "wrong",
    [
        {"decisions": [APPROVE, RESPOND]},
        {"decisions": [APPROVE]},
        {"decisions": [{}, {}]},
        {"decisions": "yes"},
        {"approve": True},
        "yes",
        7,
        ["yes"],
    ],
)
async def test_a_decision_that_the_middleware_refuses_is_asked_again(alice, turn, answer, wrong):
    paid: list[int] = []
    run = await turn(reviewed(paid, "batched"))

    again = await answer(run, wrong)
    assert (again["status"], paid) == ("waiting", [])
    assert (await answer(run, {"decisions": [APPROVE, REJECT]}))["status"] == "completed"
    assert paid == [1]


async def test_one_refused_decision_of_several_is_asked_again_alone(alice, turn, answer):
    """LangGraph lets the others come to their end first, so that no tool runs twice."""
    paid: list[int] = []
    run = await turn(reviewed(paid, "per_call"))

    again = await answer(run, APPROVE, RESPOND)
    assert [asked["value"]["args"] for asked in again["questions"]] == [{"amount": 2}]
    assert "respond" in (await waits_of(run))[-1]["reason"]
    assert (await answer(run, APPROVE))["status"] == "completed"
    assert sorted(paid) == [1, 2]
