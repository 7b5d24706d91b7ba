"""A cancel against whatever else ends a turn at the same moment: one terminal fact, and everybody agrees.

``tests.chance`` says how often.
"""

import asyncio
from collections import Counter
from uuid import uuid4

import pytest

from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.models import Cancellation, RunEvent
from runs.recovery import sweep
from runs.states import TERMINAL_EVENT
from tests.chance import TRIES, timing
from tests.fakes import Disconnect, Round, call, numbered, say
from tests.runs.harness import open_harness
from tests.runs.servers import lose_process
from tests.runs.waiting import log_of, terminal

TERMINAL_TYPES = frozenset(TERMINAL_EVENT.values())


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def nothing(moment):
    """The turn comes to its end by itself."""


async def reclaim(moment):
    """A sweeper takes the worker for dead after so many seconds."""
    await asyncio.sleep(moment)
    await in_thread(lose_process, this_process.engine)
    await in_thread(sweep.sweep, uuid4())
    await this_process.engine.beat()


OPPONENTS = {
    "natural end": ([say("a b c", delay=0.005)], nothing),
    "provider error": ([Round(numbered(3, 0.005), Disconnect())], nothing),
    "tool error": ([call("boom"), say("Never mind.")], nothing),
    "reclaim": ([say("a b c", delay=0.005)], reclaim),
}
SOURCES = ["user", "disconnect"]


@pytest.mark.timeout(max(120, 3 * TRIES))
@pytest.mark.parametrize("opponent", OPPONENTS)
async def test_cancel_against(harness, opponent):
    chance = timing()
    rounds, interfere = OPPONENTS[opponent]
    endings: Counter[str] = Counter()
    usual = await undisturbed(harness, rounds)
    for number in range(TRIES):
        await harness.open_session()
        harness.script.clear()
        harness.script.add(*rounds)
        run_id = await harness.start()
        source = SOURCES[number % 2]

        async def stop(run_id=run_id, source=source):
            await asyncio.sleep(chance.uniform(0, 1.3 * usual))
            if source == "disconnect":
                accepted = await harness.cancel(run_id, source=source)
            else:
                accepted = await in_thread(operations.cancel_session, harness.owner, harness.session)
            return await operations.wait_for_cancellation(accepted, 10)

        answer, _ = await asyncio.gather(stop(), interfere(chance.uniform(0, usual)))
        ended = await terminal(run_id)
        endings[ended.status] += 1
        await one_fact(harness, ended, answer)
    print(f"{opponent}: {dict(endings)} of {TRIES}")


async def undisturbed(harness, rounds):
    """How many seconds such a turn takes on this machine when nobody disturbs it."""
    loop, taken = asyncio.get_running_loop(), []
    for _ in range(3):
        await harness.open_session()
        harness.script.clear()
        harness.script.add(*rounds)
        began = loop.time()
        await terminal(await harness.start())
        taken.append(loop.time() - began)
    return min(taken)


async def one_fact(harness, ended, answer):
    """Log, row, operation, statistics and representations tell the same."""
    log = await log_of(ended.id)
    assert [event.seq for event in log] == list(range(1, ended.last_seq + 1))
    ends = [event for event in log if event.type in TERMINAL_TYPES]
    assert [event.type for event in ends] == [f"run.{ended.status}"]
    assert ends[0] is log[-1]
    shown = await in_thread(operations.get_run, harness.owner, ended.id)
    assert (shown["status"], shown["last_seq"]) == (ended.status, ended.last_seq)
    assert ends[0].data["statistics"] == shown["statistics"]
    session = await in_thread(operations.session_snapshot, harness.owner, harness.session)
    assert (session["active_run"], session["cancellation_pending"]) == (None, False)
    assert session["statistics"]["llm_calls"] == shown["statistics"]["llm_calls"]
    if ended.status == "cancelled":
        assert answer["outcome"] in ("cancelled", "reconciled")
        assert answer == shown["cancellation"] == ends[0].data["cancellation"]
    else:
        assert answer["outcome"] == "already_finished"
        assert not await in_thread(Cancellation.objects.filter(run=ended.id).exists)
    assert session["cancellation_revision"] in (0, 2)
    assert not await in_thread(
        RunEvent.objects.filter(run=ended.id, at__gt=ended.finished_at, seq__lt=ended.last_seq).exists
    )
