"""A crash between any two writes of a turn; log and checkpoints of different age.

``EVERY_CUT=1`` crashes behind every checkpoint write of a turn instead of every second one.
"""

import asyncio
import os
import shutil
import sqlite3

import psycopg
import pytest
from django.db import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout

from runs import agents, operations, this_process
from runs.errors import NotInterrupted
from runs.foundation.database import in_thread
from runs.log.writer import RunLog
from runs.memory.checkpoints import process_checkpoints
from runs.memory.checkpoints.saver import FencedSaver
from runs.models import Run
from runs.worker import graph_input
from tests.fakes import SHAPES, Hold, Round, call, calls, say, text
from tests.runs.harness import open_harness
from tests.runs.recovery.steps import cut_in_answer, interrupted, resumed, snapshot
from tests.runs.waiting import event, log_of, terminal


class Cut:
    """Stops an execution right behind the n-th of its checkpoint writes; with 0, before the first."""

    def __init__(self, monkeypatch, number):
        self.reached = asyncio.Event()
        self._left = number
        write = FencedSaver._write

        async def counted(saver, operation):
            written = await write(saver, operation) if number else None
            self._left -= 1
            if self._left > 0 or self.reached.is_set():
                return written
            self.reached.set()
            return await asyncio.Event().wait()

        monkeypatch.setattr(FencedSaver, "_write", counted)

    async def comes(self, run_id):
        """Whether the execution is cut before it ends."""
        ended = asyncio.create_task(terminal(run_id, 20))
        reached = asyncio.create_task(self.reached.wait())
        await asyncio.wait({ended, reached}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        reached.cancel()
        return self.reached.is_set()


@pytest.mark.parametrize("shape", ["fan_out", "plain"])
async def test_a_crash_between_any_two_steps_loses_and_repeats_nothing(
    servers, alice, serve, tmp_path, monkeypatch, shape
):
    async with open_harness(
        alice, serve, tmp_path / "marks", build=SHAPES[shape], strict_user_after_tool=True
    ) as harness:
        number = 0
        while await survives_cut(harness, servers, monkeypatch, number):
            number += 1 if "EVERY_CUT" in os.environ else 2
        assert number > 6


async def survives_cut(harness, servers, monkeypatch, number):
    """A turn of three tool calls, a crash at this cut, and its resumption; False if it has fewer cuts."""
    marks = [f"{number}.{n}" for n in range(3)]

    def respond(messages):
        results = sum(message["role"] == "tool" for message in messages)
        if results == 0:
            return call("mark", x=marks[0])
        if results == 1:
            return calls(("mark", {"x": marks[1]}), ("mark", {"x": marks[2]}))
        return say("Done.")

    await harness.open_session()
    harness.script.respond = respond
    llm_calls = len(harness.provider.calls)
    with monkeypatch.context() as patched:
        cut = Cut(patched, number)
        run_id = await harness.start("go")
        if not await cut.comes(run_id):
            return False
        for execution in this_process.engine.executions.values():
            await execution._log.flush()
        await servers.crash()
    await servers.start()
    await interrupted(run_id)
    saved = await results(harness)

    resumption = await resumed(harness, run_id)

    assert resumption.status == "completed", (number, resumption.error_message)
    for mark in marks:
        assert 1 <= harness.marks.count(mark) <= (1 if mark in saved else 2), (number, saved)
    history = await harness.history()
    assert [m["text"] for m in history if m["role"] == "user"] == ["go"]
    assert history[-1]["text"] == "Done."
    assert [c["result"] for m in history for c in m["tool_calls"]] == [f"marked {x}" for x in marks]
    counted = sum(
        run.llm_calls for run in await in_thread(lambda: list(Run.objects.filter(session=harness.session)))
    )
    # The last one may have begun in the moment of the crash, too late for the books.
    assert counted <= len(harness.provider.calls) - llm_calls <= counted + 1
    await harness.assert_sendable()
    harness.script.respond = None
    await harness.assert_next_completes()
    return True


async def results(harness):
    """What the tools of the session marked, as far as the checkpoint holds it."""
    graph = agents.load("assistant").graph_on(this_process.engine.checkpoints.reader())
    found = await graph.aget_state({"configurable": {"thread_id": harness.session}})
    return [m.text.removeprefix("marked ") for m in found.values.get("messages", ()) if m.type == "tool"]


async def test_a_dismissed_turn_reads_the_same_once_the_next_turn_has_repaired_it(harness, servers):
    harness.script.add(call("slow_async", seconds=60))
    run_id = await harness.start()
    await event(run_id, "tool.started")
    await servers.restart()
    await interrupted(run_id)

    await in_thread(operations.dismiss, harness.owner, run_id)

    before = await harness.history()
    assert before[-1]["text"] == "(The turn was interrupted before an answer was given.)"
    await harness.assert_next_completes()
    after = await harness.history()
    assert [(m["id"], m["role"], m["text"], m["status"], m["run"]) for m in after[: len(before)]] == [
        (m["id"], m["role"], m["text"], m["status"], m["run"]) for m in before
    ]


async def test_a_database_that_is_away_when_a_turn_begins_is_waited_for(harness, servers, monkeypatch):
    harness.script.add(say("There it is."))
    load, away = (
        graph_input.load,
        [OperationalError("the server closed the connection"), InterfaceError("closed")],
    )

    def load_in_the_end(run_id):
        if away:
            raise away.pop()
        return load(run_id)

    monkeypatch.setattr(graph_input, "load", load_in_the_end)

    assert (await terminal(await harness.start())).status == "completed"
    assert not away


async def test_a_database_that_is_away_while_the_history_is_brought_into_order_is_waited_for(
    harness, servers, monkeypatch
):
    """The checkpoints raise what the driver of their database raises."""
    await cut_in_answer(harness)
    await servers.restart()
    repair = graph_input.repair
    away = [PoolTimeout("none"), psycopg.OperationalError("ended"), sqlite3.OperationalError("locked")]

    async def repair_in_the_end(*args, **options):
        if away:
            raise away.pop()
        return await repair(*args, **options)

    monkeypatch.setattr(graph_input, "repair", repair_in_the_end)

    await harness.assert_next_completes()
    assert not away


@pytest.mark.parametrize("last", [None, "tool.started"])
@pytest.mark.parametrize("decision", ["resume", "dismiss"])
async def test_a_checkpoint_newer_than_the_log(harness, servers, monkeypatch, last, decision):
    """The log is written after the fact: the last moments before a crash may be in the checkpoint alone.

    A run that goes on logs them. If none does, the model knows more than people were told, and nobody is told
    that a call had no effect.
    """
    harness.script.add(call("mark", x="1"), Round(Hold("second"), text("Never said.")))
    emit, count = RunLog.emit, RunLog.count
    logged = []

    def is_lost():
        return last is None or last in logged

    def emit_until(log, type, data):
        if not is_lost():
            logged.append(type)
            emit(log, type, data)

    def count_until(log, **deltas):
        if not is_lost() or deltas == {"tool_calls": 1}:  # counted right behind its event
            count(log, **deltas)

    monkeypatch.setattr(RunLog, "emit", emit_until)
    monkeypatch.setattr(RunLog, "count", count_until if last else lambda log, **deltas: None)
    run_id = await harness.start()
    await harness.script.gate("second").reached()
    for execution in this_process.engine.executions.values():
        await execution._log.flush()
    await servers.crash()
    monkeypatch.undo()
    assert [e.type for e in await log_of(run_id)][-1] == (last or "run.started")
    await servers.start()
    await interrupted(run_id)
    harness.script.clear()

    if decision == "resume":
        ended = await resumed(harness, run_id)
        assert ended.status == "completed", ended.error_message
        assert "tool.completed" in [e.type for e in await log_of(ended.id)]
    else:
        await in_thread(operations.dismiss, harness.owner, run_id)
        await harness.assert_next_completes()

    assert harness.marks.read() == ["1"]
    history = await harness.history()
    calls = [call for message in history for call in message["tool_calls"]]
    if decision == "dismiss":
        assert history[0]["text"] == "go"
        assert [call["effect"] for call in calls][:1] == (["unknown"] if last else [])
    else:
        told = calls[0]
        assert (told["status"], told["result"], told["effect"]) == ("completed", "marked 1", "done")
        assert [m["text"] for m in history] == ["go", "", "All right."]
        assert (await snapshot(harness))["statistics"]["tool_calls"] == 1
        await harness.assert_sendable()
        await harness.assert_next_completes()


@pytest.mark.parametrize("decision", ["resume", "retry", "dismiss"])
async def test_a_checkpoint_older_than_the_log(harness, servers, decision):
    """The checkpoints were lost: the turns that were not in order yet come back from the log."""
    harness.script.add(call("mark", x="1"))
    run_id = await cut_in_answer(harness)
    await servers.crash()
    async with process_checkpoints() as checkpoints:
        await checkpoints.delete([harness.session])
    await servers.start()
    await interrupted(run_id)
    harness.script.clear()

    if decision == "dismiss":
        await in_thread(operations.dismiss, harness.owner, run_id)
    else:
        admitted = await in_thread(getattr(operations, decision), harness.owner, run_id)
        assert (await terminal(admitted["id"])).status == "completed"

    await harness.assert_next_completes()
    said = [m["content"] for m in harness.provider.calls[-1].messages if m["role"] == "user"]
    assert said == ["go", "and now?"]
    if decision == "dismiss":
        assert "w1 w2 w3 w4 w5" in str(harness.provider.calls[-1].messages)
        assert "marked 1" in str(harness.provider.calls[-1].messages)
    await harness.assert_sendable()


@pytest.mark.sqlite("a backup of PostgreSQL has both as of one moment")
async def test_a_backup_whose_checkpoints_are_older_restores_all_that_was_said(harness, servers, settings):
    async def turn(words):
        harness.script.add(say(f"Answer to {words}"))
        assert (await terminal(await harness.start(words))).status == "completed"

    await turn("one")
    await servers.leave()
    backup = f"{settings.CHECKPOINT_PATH}.backup"
    shutil.copy(settings.CHECKPOINT_PATH, backup)
    await servers.start()
    await turn("two")
    await turn("three")
    before = await harness.history()
    await servers.leave()
    shutil.move(backup, settings.CHECKPOINT_PATH)
    await servers.start()

    assert await harness.history() == before
    assert [message["text"] for message in before][-2:] == ["three", "Answer to three"]
    await harness.assert_next_completes()
    assert (await harness.history())[: len(before)] == before


@pytest.mark.parametrize("decision", ["resume", "retry", "dismiss", "message"])
async def test_a_cancel_in_the_queue_takes_no_decision_away(harness, servers, decision):
    """What was queued behind the lost run and cancelled there ended later, but has not taken its place."""
    run_id = await cut_in_answer(harness)
    queued = await harness.start("never mind", multitask="enqueue")
    await servers.crash()
    await servers.start()
    await interrupted(run_id)
    harness.script.clear()

    assert (await harness.cancel(queued))["outcome"] == "cancelled"

    assert (await snapshot(harness))["status"] == "interrupted"
    with pytest.raises(NotInterrupted):
        await in_thread(operations.retry, harness.owner, queued)
    if decision == "dismiss":
        await in_thread(operations.dismiss, harness.owner, run_id)
    elif decision == "message":
        await harness.assert_next_completes("something else")
    else:
        following = await in_thread(getattr(operations, decision), harness.owner, run_id)
        assert (await terminal(following["id"])).status == "completed"
    assert (await snapshot(harness))["status"] == "idle"
    await harness.assert_next_completes()
    await harness.assert_sendable()
    history = [m["text"] for m in await harness.history() if m["role"] == "user"]
    begun = {"retry": ["never mind", "go"], "message": ["go", "never mind", "something else"]}
    assert history == [*begun.get(decision, ["go", "never mind"]), "and now?"]
    asked = [m["content"] for m in harness.provider.calls[-1].messages if m["role"] == "user"]
    assert asked == history
