"""The event writer: batches of many runs in few statements, and what is counted without an event."""

import asyncio
import threading
from collections import Counter
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.db import DataError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from langchain_core.tools import tool
from langgraph.prebuilt import ToolRuntime

from runs import operations
from runs.errors import Fenced
from runs.lifecycle import queue
from runs.log import tool_calls, writer
from runs.log.writer import EventWriter, RunLog
from runs.models import Run, RunEvent, Session, Worker
from runs.states import EventType
from runs.worker import execution
from tests.fakes import Round, Silence, call, fan_out_graph, say
from tests.runs.harness import open_harness
from tests.runs.waiting import at_rest, log_of, terminal, until

TOLD = (EventType.MESSAGE_DELTA, {"message": "m", "text": "word"})
DELTA = (EventType.MESSAGE_DELTA, '{"message":"m","text":"word"}')


class Claimed:
    """As much of an execution's log as a commit looks at."""

    gated_tools = ()

    def __init__(self, run):
        self.run_id, self.claim, self.batches = run.id, run.claim, 0


@pytest.fixture
def claimed(alice):
    """Makes runs that execute."""
    worker = Worker.objects.create(host="h", boot="b", pid=1, pid_started="1", version="1")

    def claim(count):
        sessions = [Session.objects.create(owner=alice, agent="assistant") for _ in range(count)]
        for session in sessions:
            operations.start_turn(alice, session.id, "go")
        return [Claimed(queue.claim(session.id, worker.id)) for session in sessions]

    return claim


def test_a_batch_of_many_runs_adds_to_each_its_own(claimed):
    logs = claimed(12)  # two of each kind of growth, of which each is one statement
    before = {log.run_id: Run.objects.get(id=log.run_id).last_seq for log in logs}
    parts = [
        writer._Part(
            log, [TOLD] * (1 + n % 3), Counter(open_output_tokens=n % 2), [], [], [DELTA] * (1 + n % 3)
        )
        for n, log in enumerate(logs)
    ]
    with CaptureQueriesContext(connection) as queries:
        assert writer._commit(parts, False) == [writer.Outcome.COMMITTED] * 12
    for n, log in enumerate(logs):
        run = Run.objects.get(id=log.run_id)
        assert run.last_seq == before[run.id] + 1 + n % 3
        assert (run.open_output_tokens, run.batches) == (n % 2, 1)
        assert [*RunEvent.objects.filter(run=run).order_by("seq").values_list("seq", flat=True)] == [
            *range(1, run.last_seq + 1)
        ]
    assert sum(query["sql"].startswith("INSERT") for query in queries) == 1
    assert sum(query["sql"].startswith("UPDATE") for query in queries) == 6


def test_a_batch_larger_than_a_statement_is_written_whole(claimed, monkeypatch):
    monkeypatch.setattr("runs.log.events._ROWS", 4)
    (log,) = claimed(1)
    before = Run.objects.get(id=log.run_id).last_seq
    writer._commit([writer._Part(log, [TOLD] * 10, Counter(), [], [], [DELTA] * 10)], False)
    run = Run.objects.get(id=log.run_id)
    assert run.last_seq == before + 10
    assert RunEvent.objects.filter(run=run).count() == run.last_seq


async def test_a_call_that_says_nothing_is_counted_soon(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks", rounds=[Round(Silence())]) as harness:
        run_id = await harness.start()
        await until(Run.objects.filter(id=run_id, llm_calls=1).exists, what="the count of the call")
        await harness.cancelled(run_id)


async def test_what_is_counted_goes_with_the_next_event(engine, alice, serve, tmp_path, monkeypatch):
    """Else the first token of an answer would wait for a commit that nobody looks at."""
    counted = []

    def never(writer):
        counted.append(writer)

    monkeypatch.setattr(EventWriter, "wake_later", never)
    async with open_harness(alice, serve, tmp_path / "marks", rounds=[say("one")]) as harness:
        ended = await terminal(await harness.start())
    assert counted
    assert ended.llm_calls == 1


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["left alone", "cancelled meanwhile"])
async def test_a_turn_whose_log_cannot_be_stored_ends_while_its_tool_is_at_work(
    engine, alice, serve, tmp_path, monkeypatch, is_cancelled
):
    """It is still ours, so nobody else would end it."""
    project = tool_calls.project
    broken = threading.Event()

    def refuse(run_id, entries, at, gated_tools=()):
        if any(type == EventType.TOOL_PROGRESS for type, _ in entries):
            broken.set()
            raise DataError("value too long")
        project(run_id, entries, at, gated_tools)

    monkeypatch.setattr(tool_calls, "project", refuse)
    if is_cancelled:  # the cancel comes first
        monkeypatch.setattr(execution, "_LIMITS_INTERVAL", 60)

    @tool
    async def report(runtime: ToolRuntime) -> str:
        """Report progress, and work on."""
        runtime.emit_output_delta("half")
        await asyncio.sleep(60)
        return "done"

    def build(model, tools):
        return fan_out_graph(model, [report])

    options = {"build": build, "rounds": [call("report")]}
    async with open_harness(alice, serve, tmp_path / "marks", **options) as harness:
        run_id = await harness.start()
        await until(broken.is_set)
        ended = await (harness.cancelled(run_id) if is_cancelled else terminal(run_id))
        monkeypatch.undo()

        assert ended.status == ("cancelled" if is_cancelled else "failed")
        assert ended.error_code == (None if is_cancelled else "internal")
        log = await log_of(run_id)
        assert [event.seq for event in log] == list(range(1, ended.last_seq + 1))
        await at_rest(engine)
        assert not engine.executions
        await harness.assert_next_completes()


async def test_who_waits_for_room_hears_of_a_failure():
    """What came during the commit that failed is dropped, and with it the reason to wait."""
    idle = SimpleNamespace(wake=lambda *, urgent: None)
    log = RunLog(idle, uuid4(), uuid4(), position=1, claim=1, batches=0, started_at=timezone.now())
    log.emit(EventType.MESSAGE_DELTA, {"message": "m", "text": "word"})
    part = log.take()
    log.emit(EventType.MESSAGE_DELTA, {"message": "m", "text": "x" * (writer._BUFFER_LIMIT + 1)})
    log.finish(part, Fenced())
    with pytest.raises(Fenced):
        async with asyncio.timeout(10):
            await log.room()
