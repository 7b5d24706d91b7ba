"""Each graph of the zoo is led through each kind of life.

``ZOO_POINTS=all`` interferes at every moment of a life instead of at a few.
"""

import asyncio
import os
import time

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run
from runs.worker.ending import StopReason
from tests.chat.openai.completions import stream
from tests.runs.waiting import status, until
from tests.zoo import checks
from tests.zoo.graphs import GRAPHS
from tests.zoo.lives import life_of
from tests.zoo.model import GO, GO_AND_ASK

EVERY = os.environ.get("ZOO_POINTS") == "all"

pytestmark = [
    pytest.mark.usefixtures("transactional_db"),
    pytest.mark.filterwarnings("ignore:create_react_agent has been moved"),  # langgraph-supervisor uses it
]


@pytest.fixture
def live(alice, serve, tmp_path, settings):
    """Opens a life of a graph."""
    settings.RUNS_CANCEL_GRACE = 1
    return lambda name, **policy: life_of(GRAPHS[name], alice, serve, tmp_path, **policy)


def lead(kind, points=None, chosen=lambda graph: True):
    """Lead each graph that is chosen through this kind of life, at each of its points if there are any."""
    cases = []
    for name, graph in GRAPHS.items():
        for point in (points(graph) if points else [""]) if chosen(graph) else ():
            case = f"{kind}: {name} {point}".strip()
            cases.append(pytest.param(*((name, point) if points else (name,)), id=case))
    return pytest.mark.parametrize(("graph", "point") if points else "graph", cases)


def anywhere(graph):
    return graph.all_points() if EVERY else graph.points


def somewhere(graph):
    return graph.all_points() if EVERY else graph.points[-1:]


def in_a_thread(graph):
    return [graph.stuck] if graph.stuck else []


@lead("whole")
async def test_whole(live, graph):
    async with live(graph) as life:
        await life.begin()
        run = await life.ended()
        assert run.status == "completed", run.error_message
        assert sorted(entry.point for entry in life.entries()) == sorted(life.graph.all_points())
        await checks.agrees(life)
        await checks.next_turn_completes(life)


async def has_stopped(life, since):
    """After a turn that was stopped: nothing goes on, all agrees, and the session is not hurt."""
    checks.nothing_started_after(life, since)
    await checks.agrees(life)
    await checks.next_turn_completes(life)
    checks.nothing_started_after(life, since)


@lead("cancelled", anywhere)
async def test_cancelled(live, graph, point):
    async with live(graph) as life:
        await life.begin(hold=point)
        await in_thread(operations.cancel_run, life.owner, life.runs[-1])
        stopped = await life.let_go()
        run = await life.ended()
        assert run.status == "cancelled"
        assert stopped < run.cancel_requested_at.timestamp() + checks.AT_ONCE
        await has_stopped(life, stopped)


@lead("given up", in_a_thread)
async def test_cancelled_while_a_thread_is_stuck(live, graph, point, settings):
    settings.RUNS_CANCEL_GRACE = 0.1
    async with live(graph) as life:
        await life.begin(hold=point)
        await in_thread(operations.cancel_run, life.owner, life.runs[-1])
        run = await life.ended()
        assert run.status == "cancelled"
        stopped = run.cancel_requested_at.timestamp() + checks.AT_ONCE
        await has_stopped(life, stopped)
        assert life.engine.stragglers
        await asyncio.sleep(stopped - time.time())  # what comes now, comes too late

        life.ledger.release()

        await until(lambda: not life.engine.stragglers, what="the end of the stragglers")
        await life.ended()
        checks.nothing_started_after(life, stopped)
        await checks.agrees(life)
        await checks.effects_are_known(life)


@lead("cancelled and retried", somewhere)
async def test_cancelled_and_retried(live, graph, point):
    async with live(graph) as life:
        await life.begin(hold=point)
        await in_thread(operations.cancel_run, life.owner, life.runs[-1])
        await life.let_go()
        await life.ended()
        run = await life.follow(await in_thread(operations.retry, life.owner, life.runs[-1]))
        assert run.status == "completed", run.error_message
        await checks.agrees(life)
        await checks.next_turn_completes(life)


@lead("killed and resumed", anywhere)
async def test_killed_and_resumed(live, graph, point):
    async with live(graph) as life:
        await life.begin(hold=point)
        await life.crash()
        assert (await life.ended()).status == "interrupted"
        run = await life.follow(await in_thread(operations.resume, life.owner, life.runs[-1]))
        assert run.status == "completed", run.error_message
        await checks.agrees(life)
        await checks.next_turn_completes(life)


@lead("killed, by itself", anywhere)
async def test_killed_and_resumed_by_itself(live, graph, point):
    async with live(graph, on_interrupt="resume") as life:
        await life.begin(hold=point)
        await life.crash()
        await goes_on_by_itself_or_not(life)


async def goes_on_by_itself_or_not(life):
    """After an interruption: nothing is done twice, and all agrees."""
    await life.ended()
    await life.engine.sweep()
    following = await in_thread(Run.objects.filter(resumes__id=life.runs[-1]).first)
    if following is not None:
        run = await life.follow({"id": following.id})
        assert run.status == "completed", run.error_message
    checks.nothing_ran_twice(life)
    await checks.agrees(life)
    await checks.next_turn_completes(life)
    checks.nothing_ran_twice(life)


@lead("killed and retried", somewhere)
async def test_killed_and_retried(live, graph, point):
    async with live(graph) as life:
        await life.begin(hold=point)
        await life.crash()
        await life.ended()
        run = await life.follow(await in_thread(operations.retry, life.owner, life.runs[-1]))
        assert run.status == "completed", run.error_message
        await checks.agrees(life)
        await checks.next_turn_completes(life)


@lead("answered", chosen=lambda graph: graph.asks)
async def test_answered(live, graph):
    async with live(graph) as life:
        await answered(life, await asked(life))


@lead("killed while it waits, and answered", chosen=lambda graph: graph.asks)
async def test_killed_while_it_waits_and_answered(live, graph):
    async with live(graph) as life:
        run = await asked(life)
        await life.crash()
        await answered(life, run)


async def asked(life):
    await life.begin(GO_AND_ASK)
    return await status(life.runs[-1], "waiting")


async def answered(life, run):
    [question] = run.questions
    await in_thread(operations.answer, life.owner, run.id, {question["id"]: "yes"})
    run = await life.ended()
    assert run.status == "completed", run.error_message
    assert "The user says yes." in [message.text for message in await life.state()]
    await checks.agrees(life)
    await checks.next_turn_completes(life)


@lead("cancelled while it waits", chosen=lambda graph: graph.asks)
async def test_cancelled_while_it_waits(live, graph):
    async with live(graph) as life:
        await asked(life)
        await in_thread(operations.cancel_run, life.owner, life.runs[-1])
        await life.ended()
        await checks.agrees(life)
        await checks.next_turn_completes(life)


@lead("left", somewhere)
async def test_the_client_of_v1_leaves(live, graph, point):
    async with live(graph) as life:
        life.ledger.hold(point)
        _, http = await stream(life.owner, GO)
        await life.begun_elsewhere(point)
        await http.disconnect()
        stopped = await life.let_go()
        run = await life.ended()
        assert run.status == "cancelled"
        assert stopped < run.cancel_requested_at.timestamp() + checks.AT_ONCE
        await has_stopped(life, stopped)


@lead("deadline", somewhere)
async def test_the_deadline_passes(live, graph, point):
    async with live(graph) as life:
        await life.begin(hold=point)
        [execution] = life.engine.executions.values()
        execution.stop(StopReason.DEADLINE)
        stopped = await life.let_go()
        run = await life.ended()
        assert (run.status, run.error_code) == ("failed", "timeout")
        await has_stopped(life, stopped)


@lead("forced", somewhere)
async def test_forced(live, graph, point, olivia):
    async with live(graph) as life:
        await life.begin(hold=point)
        await life.logged()
        await in_thread(operations.force_cancel, olivia, life.runs[-1], "It has to be now.")
        stopped = await life.let_go()
        run = await life.ended()
        assert run.status == "cancelled"
        await has_stopped(life, stopped)


@lead("drained in time", somewhere)
async def test_drained_in_time(live, graph, point):
    async with live(graph, on_interrupt="resume") as life:
        await life.begin(hold=point)
        leaving = asyncio.create_task(life.servers.leave(5))
        await until(lambda: life.engine.leaving, what="the drain")
        life.ledger.release()
        await leaving
        await starts_again(life)


@lead("drained too late", somewhere)
async def test_drained_too_late(live, graph, point):
    async with live(graph, on_interrupt="resume") as life:
        await life.begin(hold=point)
        leaving = asyncio.create_task(life.servers.leave(2))
        await life.let_go()
        await leaving
        await starts_again(life)


async def starts_again(life):
    life.broke_off()
    await life.servers.start()
    await goes_on_by_itself_or_not(life)
