"""Retention: what goes, what stays, who is told; beside running turns and beside itself."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F
from django.utils import timezone

from runs import operations
from runs.errors import CursorGone
from runs.foundation.database import in_thread
from runs.live.follow import Event
from runs.log import compaction
from runs.models import AuditEntry, DailyTotal, Run, RunEvent, Session
from runs.recovery import deletion
from tests.fakes import Hold, Round, call, numbered, say, text
from tests.runs.harness import open_harness
from tests.runs.waiting import event, log_of, terminal

GOING = ("message.delta", "tool.progress")


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def turn(harness, *rounds, days=8):
    """A whole turn, so many days ago; its run."""
    harness.script.add(*rounds or (Round(numbered(20, delay=0.002)),))
    run = await terminal(await harness.start())
    await in_thread(long_ago, run.id, days)
    return run


def long_ago(run_id, days):
    Run.objects.filter(id=run_id).update(finished_at=F("finished_at") - timedelta(days=days))


async def drain(items, seen):
    async for item in items:
        seen.append(item)


def said(*arguments):
    out = StringIO()
    call_command("prune_runs", *arguments, stdout=out)
    return out.getvalue().strip()


async def prune(*arguments):
    return await in_thread(said, *arguments)


async def test_pieces_of_messages_go_and_everything_else_stays_with_its_number(harness):
    harness.script.add(call("mark", x="1"), Round(text("One "), Hold("middle"), text("two")))
    run_id = await harness.start()
    await event(run_id, "message.delta")
    harness.script.gate("middle").open()  # so that there are two pieces
    run = await terminal(run_id)
    await in_thread(long_ago, run.id, 8)
    before = await log_of(run.id)
    going = [event for event in before if event.type in GOING]

    assert (
        await prune() == f"Sessions deleted: 0. Logs made compact: 1, of which {len(going)} events are gone."
    )

    after = await log_of(run.id)
    assert [(event.seq, event.type, event.data) for event in after] == [
        (event.seq, event.type, event.data) for event in before if event.type not in GOING
    ]
    stored = await harness.run(run.id)
    assert (stored.compacted_to, stored.last_seq) == (going[-1].seq, run.last_seq)
    assert len(going) > 1


async def test_the_history_is_the_same_before_and_after(harness):
    await turn(harness, call("mark", x="1"), say("one two three"))
    await turn(harness, call("boom"), say("four"))
    harness.script.add(Round(text("Five "), Hold("middle"), text("six")))
    run_id = await harness.start()
    await event(run_id, "message.delta")
    await harness.cancelled(run_id)
    await in_thread(long_ago, run_id, 8)
    before = await harness.history()

    assert "Logs made compact: 3," in await prune()

    assert await harness.history() == before
    assert [message["status"] for message in before][-1] == "interrupted"
    await harness.assert_next_completes()


async def test_young_runs_are_left_alone_and_the_age_is_an_option(harness):
    run = await turn(harness, days=6)

    assert "made compact: 0," in await prune()
    assert "made compact: 0," in await prune("--compact-after", "6.5")
    assert (await harness.run(run.id)).compacted_to is None
    assert "made compact: 1," in await prune("--compact-after", "5")


async def test_a_dry_run_tells_the_same_and_does_nothing(harness):
    run = await turn(harness)
    before = await log_of(run.id)

    would = await prune("--dry-run", "--delete-after", "0")

    assert await log_of(run.id) == before
    assert would.startswith(
        "Sessions would have been deleted: 1. Logs would have been made compact: 1, of which"
    )
    assert (await prune()).split(": 1, of which ")[1].split()[0] == would.split(": 1, of which ")[1].split()[
        0
    ]


async def test_a_run_that_no_turn_has_repaired_yet_loses_its_pieces_and_no_word(harness):
    run = await turn(harness)
    await in_thread(Run.objects.filter(id=run.id).update, repaired=False)
    before = await harness.history()

    assert "made compact: 1," in await prune()
    assert await harness.history() == before
    harness.script.add(say("Next."))
    assert (await terminal(await harness.start())).status == "completed"
    assert (await harness.history())[: len(before)] == before


async def test_the_words_of_a_message_that_was_never_completed_are_kept(harness):
    run = await turn(harness)
    await in_thread(RunEvent.objects.filter(run=run.id, type="message.completed").delete)
    before = await log_of(run.id)

    await prune()

    assert await log_of(run.id) == before
    assert (await harness.run(run.id)).compacted_to == 0


async def test_batches_are_bounded_by_events_and_nothing_is_left_out(harness):
    runs = [await turn(harness, days=9 - number) for number in range(4)]
    size = runs[0].last_seq

    batches = [done.runs for done in await in_thread(list, compaction.compact(timezone.now(), size + 1))]

    assert batches == [1] * 4
    assert "made compact: 0," in await prune("--compact-after", "0")


async def test_paging_passes_over_nothing(harness, monkeypatch):
    for _ in range(3):
        await turn(harness, say("short"))
    await in_thread(Run.objects.update, finished_at=timezone.now() - timedelta(days=8))  # all at once
    monkeypatch.setattr(compaction, "_PAGE", 1)

    assert "made compact: 3," in await prune()


async def test_what_breaks_off_is_done_the_next_time(harness):
    for _ in range(3):
        await turn(harness)

    begun = compaction.compact(timezone.now(), 1)
    await in_thread(next, begun)
    begun.close()

    assert "made compact: 2," in await prune()


async def test_two_at_once_compact_each_run_once(harness):
    for _ in range(4):
        await turn(harness)
    told = await asyncio.gather(prune("--batch", "1"), prune("--batch", "1"))

    compacted = [int(words.split("made compact: ")[1].split(",")[0]) for words in told]
    assert sum(compacted) == 4
    assert await in_thread(Run.objects.filter(compacted_to__gt=0).count) == 4


async def test_a_turn_that_runs_meanwhile_loses_nothing(harness):
    await turn(harness)
    harness.script.add(Round(numbered(10), Hold("half"), numbered(10)))
    run_id = await harness.start()
    await harness.script.gate("half").reached()

    assert "made compact: 1," in await prune("--compact-after", "0")
    harness.script.gate("half").open()
    ended = await terminal(run_id)

    assert [event.seq for event in await log_of(run_id)] == list(range(1, ended.last_seq + 1))


class TestDeleting:
    """--delete-after: whole sessions that nobody uses any more."""

    @pytest.fixture
    async def old(self, harness):
        """A session with a turn in it that nobody has touched for ten days."""
        run = await turn(harness, days=10)
        await in_thread(Session.objects.update, updated_at=timezone.now() - timedelta(days=10))
        return run

    async def test_unused_sessions_go_with_an_audit_entry_and_their_totals_stay(self, harness, old):
        checkpoints = harness.engine.checkpoints
        config = {"configurable": {"thread_id": harness.session, "checkpoint_ns": ""}}
        assert await checkpoints.reader().aget_tuple(config)

        assert (await prune("--delete-after", "9")).startswith("Sessions deleted: 1.")

        assert not await in_thread(Session.objects.exists)
        assert not await in_thread(RunEvent.objects.exists)
        assert await checkpoints.reader().aget_tuple(config) is None
        entry = await in_thread(AuditEntry.objects.get)
        assert (entry.actor, entry.action, entry.target) == ("prune_runs", "delete_session", harness.session)
        total = await in_thread(DailyTotal.objects.get)
        day = timezone.localdate(old.finished_at - timedelta(days=10))
        assert (total.day, total.runs, total.output_tokens) == (day, 1, old.output_tokens)

    async def test_without_the_option_nothing_is_deleted(self, harness, old):
        assert (await prune()).startswith("Sessions deleted: 0.")

    async def test_younger_sessions_stay(self, harness, old):
        assert (await prune("--delete-after", "11")).startswith("Sessions deleted: 0.")

    async def test_a_session_with_an_active_run_stays_however_old(self, harness, old):
        harness.script.add(Round(text("a"), Hold("middle"), text("b")))
        run_id = await harness.start()
        await harness.script.gate("middle").reached()
        await in_thread(Session.objects.update, updated_at=timezone.now() - timedelta(days=10))

        assert (await prune("--delete-after", "1")).startswith("Sessions deleted: 0.")

        harness.script.gate("middle").open()
        assert (await terminal(run_id)).status == "completed"

    async def test_a_session_that_is_used_at_the_last_moment_stays(self, harness, old, monkeypatch):
        before = timezone.now() - timedelta(days=9)
        first = deletion.unused(before)
        monkeypatch.setattr(deletion, "unused", lambda since: turns.pop(0))
        turns = [first, Session.objects.none(), Session.objects.none()]

        assert await deletion.delete_unused(before) == 0
        assert await in_thread(Session.objects.exists)


@pytest.mark.parametrize(
    "arguments", [("--compact-after", "-1"), ("--delete-after", "soon"), ("--batch", "0")]
)
def test_what_is_no_number_is_refused_with_a_sentence(arguments, db):
    with pytest.raises(CommandError, match="is no number of"):
        said(*arguments)


class TestCursors:
    """410 cursor_gone: whoever would get a log with holes gets CursorGone instead."""

    async def test_cursor_gone_for_every_place_before_the_last_piece(self, harness):
        run = await turn(harness)
        await prune()
        gone = (await harness.run(run.id)).compacted_to

        for after in (0, 1, gone - 1):
            with pytest.raises(CursorGone):
                await in_thread(operations.events, harness.owner, run.id, after=after)
            with pytest.raises(CursorGone):
                await anext(operations.follow_run(harness.owner, run.id, after))
            with pytest.raises(CursorGone):
                await anext(operations.follow_session(harness.owner, harness.session, (run.id, after)))

    async def test_from_the_last_piece_on_everything_follows(self, harness):
        run = await turn(harness)
        await prune()
        gone = (await harness.run(run.id)).compacted_to
        rest = list(range(gone + 1, run.last_seq + 1))

        page = await in_thread(operations.events, harness.owner, run.id, after=gone)
        assert [event["seq"] for event in page["events"]] == rest
        assert page["done"]
        assert [event.seq async for event in operations.follow_run(harness.owner, run.id, gone)] == rest
        page = await in_thread(operations.events, harness.owner, run.id, after=run.last_seq)
        assert (page["events"], page["done"]) == ([], True)
        assert [item async for item in operations.follow_run(harness.owner, run.id, run.last_seq)] == []

    async def test_cursor_gone_when_a_later_run_of_the_session_has_holes(self, harness):
        first = await turn(harness, days=1)
        await turn(harness)
        await prune()

        with pytest.raises(CursorGone):
            await anext(operations.follow_session(harness.owner, harness.session, (first.id, first.last_seq)))

    async def test_without_a_cursor_a_session_is_followed_from_now(self, harness):
        await turn(harness)
        await prune()
        async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
            await anext(items)
            harness.script.add(say("fine"))
            run_id = await harness.start()
            seen = []
            async for item in items:
                if isinstance(item, Event):
                    seen.append((item.run, item.seq))
                    if item.terminal:
                        break

        assert seen == [(run_id, event.seq) for event in await log_of(run_id)]

    @pytest.mark.parametrize("what", ["run", "session"])
    async def test_cursor_gone_for_who_reads_while_the_log_is_compacted(self, harness, monkeypatch, what):
        monkeypatch.setattr("runs.live.follow.PAGE", 4)
        run = await turn(harness)
        follow = {
            "run": lambda: operations.follow_run(harness.owner, run.id),
            "session": lambda: operations.follow_session(harness.owner, harness.session, (run.id, 0)),
        }
        async with aclosing(follow[what]()) as items:
            seen = [await anext(items) for _ in range(2)]
            await prune()
            with pytest.raises(CursorGone):
                await drain(items, seen)

        numbers = [item.seq for item in seen if isinstance(item, Event)]
        assert numbers == list(range(1, len(numbers) + 1))
