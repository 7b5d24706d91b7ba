"""Following: nothing lost, nothing twice, in order, over a layer that may lose anything."""

import asyncio
import random
from contextlib import AsyncExitStack, aclosing
from uuid import UUID

import pytest
from channels.layers import get_channel_layer

from runs import operations, this_process
from runs.errors import NotFound
from runs.foundation.database import in_thread
from runs.lifecycle import titles
from runs.live import hub
from runs.live.follow import Event, SessionChanged, SessionDeleted
from runs.states import TitleSource
from runs.wire import representations
from tests.fakes import Hold, Round, call, numbered, say
from tests.runs.harness import open_harness
from tests.runs.remote_followers import remote_followers
from tests.runs.waiting import PATIENCE, log_of, terminal, until


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


class Following:
    """Collects all events of a session from now on, until so many runs have ended."""

    def __init__(self, harness, runs=1):
        self._harness = harness
        self._runs = runs
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._collect())

    async def _collect(self):
        seen, left = [], self._runs
        async with aclosing(operations.follow_session(self._harness.owner, self._harness.session)) as items:
            async for item in items:
                if isinstance(item, Event):
                    seen.append((item.run, item.seq))
                    left -= item.terminal
                    if not left:
                        break
                self._ready.set()
        return seen

    async def begun(self):
        """From here on nothing is missed."""
        await self._ready.wait()
        return self

    async def all(self):
        async with asyncio.timeout(20 * PATIENCE):
            return await self._task


async def follow(harness, count=1, **options):
    """So many followers that have begun."""
    return [await one.begun() for one in [Following(harness, **options) for _ in range(count)]]


async def whole_log(*run_ids):
    return [(str(run_id), event.seq) for run_id in run_ids for event in await log_of(run_id)]


async def test_a_follower_gets_every_event_of_every_run_in_order(harness):
    harness.script.add(call("mark", x="1"), say("one two three"), say("four five"))
    [following] = await follow(harness, runs=2)
    first = await harness.start("first")
    second = await harness.start("second", multitask="enqueue")

    assert await following.all() == await whole_log(first, second)


async def test_two_hundred_reconnects_lose_nothing_and_repeat_nothing(harness):
    # Of tool calls each event stays one, however busy the machine is; pieces of text are merged.
    harness.script.add(*(call("mark", x=str(n)) for n in range(20)), Round(numbered(100, delay=0.004)))
    run_id = await harness.start()
    seen = []
    reconnects = 0
    while not seen or not seen[-1].terminal:
        cursor = (run_id, seen[-1].seq) if seen else (run_id, 0)
        async with aclosing(operations.follow_session(harness.owner, harness.session, cursor)) as items:
            wanted = random.randint(1, 3)
            async for item in items:
                if isinstance(item, Event):
                    seen.append(item)
                    wanted -= 1
                    if item.terminal or not wanted:
                        break
        reconnects += 1

    assert [(event.run, event.seq) for event in seen] == await whole_log(run_id)
    assert reconnects > 20


async def test_fifty_followers_each_get_every_event(harness):
    harness.script.add(Round(numbered(30), Hold("half"), numbered(30)))
    following = await follow(harness, 50)
    run_id = await harness.start()
    await harness.script.gate("half").reached()
    harness.script.gate("half").open()

    expected = await whole_log((await terminal(run_id)).id)
    assert all([await one.all() == expected for one in following])


async def test_who_comes_after_the_end_gets_the_backlog_once_and_the_stream_ends(harness):
    harness.script.add(say("one two three"))
    run_id = await harness.start()
    await terminal(run_id)

    seen = [item async for item in operations.follow_run(harness.owner, run_id)]

    assert [(event.run, event.seq) for event in seen] == await whole_log(run_id)
    assert [event.terminal for event in seen] == [False] * (len(seen) - 1) + [True]
    assert [item async for item in operations.follow_run(harness.owner, run_id, after=seen[-1].seq)] == []


class Lossy:
    """A channel layer in front of the real one that drops, and is sometimes down."""

    def __init__(self, layer, loss):
        self._layer = layer
        self._loss = loss

    def __getattr__(self, name):
        return getattr(self._layer, name)

    async def group_send(self, group, message):
        if random.random() < self._loss:
            if random.random() < 0.5:
                raise ConnectionError("the layer is down")
            return
        await self._layer.group_send(group, message)


@pytest.fixture(params=[0, 0.5, 1.0])
def lossy_layer(request, monkeypatch):
    layer = Lossy(get_channel_layer(), request.param)
    monkeypatch.setattr("runs.live.bus.get_channel_layer", lambda: layer)


async def test_with_a_lossy_or_dead_channel_layer_clients_catch_up_by_polling(lossy_layer, harness, engine):
    harness.script.add(Round(numbered(60, delay=0.01)), say("second"))
    async with remote_followers(engine):
        following = await follow(harness, 5, runs=2)
        first = await harness.start("first")
        second = await harness.start("second", multitask="enqueue")

        expected = await whole_log((await terminal(first)).id, (await terminal(second)).id)
        assert all([await one.all() == expected for one in following])


async def test_followers_in_the_engines_process_need_no_channel_layer(harness, engine, monkeypatch):
    async def refuse(*_):
        raise ConnectionError("the layer is down")

    monkeypatch.setattr(engine.bus._layer, "group_send", refuse)
    monkeypatch.setattr(engine.hub, "poll_step", refuse)
    harness.script.add(say("one two three"))
    [following] = await follow(harness)
    run_id = await harness.start()

    assert await following.all() == await whole_log(run_id)


async def test_a_follower_that_does_not_read_catches_up_from_the_log(harness):
    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        assert isinstance(await anext(items), SessionChanged)
        harness.script.add(Round(numbered(800)), *[call("mark", x=str(n)) for n in range(20)], say("end"))
        run_id = await harness.start()
        await terminal(run_id, 30)
        seen = []
        async for item in items:
            if isinstance(item, Event):
                seen.append((item.run, item.seq))
                if item.terminal:
                    break
    assert seen == await whole_log(run_id)


EVENTS = {"kind": "events", "run": "", "position": 0, "first": 1, "events": []}


async def test_a_follower_that_does_not_read_still_hears_how_its_session_has_changed(harness):
    """The log has no word of a new title, and nothing may happen to the session for a long time."""
    session_id = UUID(harness.session)
    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        await anext(items)
        [mailbox] = this_process.engine.hub._sessions[session_id]
        await in_thread(operations.rename_session, harness.owner, session_id, "Plans")
        await until(lambda: mailbox._messages)
        for _ in range(3 * hub._MAILBOX_LIMIT):
            mailbox.put(EVENTS)
        async with asyncio.timeout(20 * PATIENCE):
            assert (await anext(items)).session["title"] == "Plans"


async def test_a_mailbox_that_overflows_keeps_the_newest_of_what_no_log_has():
    def effect(number):
        return {"kind": "effect", "run": "r", "tool_call": f"{number}", "effect": "done"}

    states = [{"kind": kind, "number": n} for n in range(3) for kind in ("cancellation", "snapshot")]
    mailbox = hub.Mailbox()
    for message in [effect(1), {**effect(1), "effect": "unknown"}, effect(2), *states]:
        mailbox.put(message)
    for _ in range(3 * hub._MAILBOX_LIMIT):
        mailbox.put(EVENTS)
    kept = await mailbox.take()
    assert mailbox.lost
    assert len(kept) <= hub._MAILBOX_LIMIT
    told = [message for message in kept if message is not EVENTS]
    assert told == [{**effect(1), "effect": "unknown"}, effect(2), *states[-2:]]


async def test_a_mailbox_is_bounded_whatever_is_put_into_it():
    mailbox = hub.Mailbox()
    mailbox.put({"kind": "snapshot", "session": None})
    for number in range(3 * hub._MAILBOX_LIMIT):
        mailbox.put({"kind": "effect", "run": "r", "tool_call": f"{number}", "effect": "done"})
        mailbox.put({"kind": "deleted", "session": f"{number}"})
    kept = await mailbox.take()
    assert len(kept) <= hub._MAILBOX_LIMIT
    assert {"kind": "snapshot", "session": None} in kept
    assert kept[-1] == {"kind": "deleted", "session": f"{3 * hub._MAILBOX_LIMIT - 1}"}


async def test_nothing_is_told_that_is_not_committed(harness):
    from runs.models import RunEvent

    harness.script.add(Round(numbered(100, delay=0.002)))
    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        await anext(items)
        await harness.start()
        async for item in items:
            if isinstance(item, Event):
                assert await in_thread(RunEvent.objects.filter(run=item.run, seq=item.seq).exists)
                if item.terminal:
                    break


async def test_a_run_cancelled_in_the_queue_comes_behind_the_one_before_it(harness):
    harness.script.add(Round(numbered(3), Hold("first"), numbered(3)))
    [following] = await follow(harness, runs=2)
    first = await harness.start("first")
    await harness.script.gate("first").reached()
    second = await harness.start("second", multitask="enqueue")
    await harness.cancel(second)
    harness.script.gate("first").open()

    assert await following.all() == await whole_log(first, second)


async def test_the_revision_a_follower_sees_never_goes_back(harness):
    revisions = []
    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        for n in range(3):
            harness.script.add(Round(numbered(2), Hold(f"stop {n}"), numbered(2)))
            run_id = await harness.start()
            await harness.script.gate(f"stop {n}").reached()
            await harness.cancelled(run_id)
            harness.script.clear()
        async for item in items:
            if isinstance(item, SessionChanged):
                revisions.append(item.session["cancellation_revision"])
                pending = item.session["cancellation_pending"]
                assert pending is (item.session["cancellation_revision"] % 2 == 1)
                if revisions[-1] == 6:
                    break
    assert revisions == sorted(revisions)


async def test_a_session_that_cannot_be_shown_harms_its_own_followers_only(harness, monkeypatch, caplog):
    """What has changed is read together, and the fault is in the data of one of them."""
    ids = [await harness.open_session() for _ in range(5)]
    faulty, represent = ids[2], representations.sessions

    def represent_all_but_one(sessions):
        if faulty in map(str, (session.id for session in sessions)):
            raise ValueError("this data is no good")
        return represent(sessions)

    def rename_all(title):
        for session_id in ids:
            titles.rename(UUID(session_id), title, TitleSource.USER)

    async def called(items, title):
        async for item in items:
            if isinstance(item, SessionChanged) and item.session["title"] == title:
                return

    async with AsyncExitStack() as opened, asyncio.timeout(10 * PATIENCE):
        followed = {}
        for session_id in ids:
            following = operations.follow_session(harness.owner, session_id)
            followed[session_id] = await opened.enter_async_context(aclosing(following))
            await anext(followed[session_id])
        with monkeypatch.context() as patched:
            patched.setattr(representations, "sessions", represent_all_but_one)
            for title in ("Broken for one", "Still broken"):  # the second time it is known which
                await in_thread(rename_all, title)
                await asyncio.gather(*(called(followed[sound], title) for sound in ids if sound != faulty))
        await called(followed[faulty], "Still broken")  # by the poll, without another change
    told = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in told] == [f"Session {faulty} cannot be shown to its followers."]


async def test_a_stranger_cannot_follow(harness, bob):
    with pytest.raises(NotFound):
        await anext(operations.follow_session(bob, harness.session))
    with pytest.raises(NotFound):
        await anext(operations.follow_session(bob, "no uuid"))


async def test_deleting_a_session_ends_its_turn_and_tells_its_followers(harness, engine):
    from runs.models import AuditEntry, Run, RunEvent, Session

    harness.script.add(Round(numbered(3), Hold("never"), numbered(3)))
    async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
        await anext(items)
        await harness.start()
        await harness.script.gate("never").reached()

        await operations.delete_session(harness.owner, harness.session)

        last = [item async for item in items][-1]
    assert isinstance(last, SessionDeleted)
    for model in (Session, Run, RunEvent):
        assert not await in_thread(model.objects.exists)
    assert (await in_thread(AuditEntry.objects.get)).action == "delete_session"
    found = [
        c async for c in engine.checkpoints.reader().alist({"configurable": {"thread_id": harness.session}})
    ]
    assert found == []
    await harness.ledger.ended(1)
    assert harness.provider.calls[0].outcome == "closed"


async def test_closed_followers_leave_nothing_behind(harness, engine):
    for _ in range(50):
        async with aclosing(operations.follow_session(harness.owner, harness.session)) as items:
            await anext(items)
    assert engine.hub.followers == 0
    assert [group for group in engine.bus._handlers if group.startswith("session.")] == []


async def test_who_repeats_a_start_follows_the_run_and_does_not_take_it_along(harness):
    harness.script.add(say("one two three"))
    first = await in_thread(operations.start_turn, harness.owner, harness.session, "hi", key="k")
    again = await in_thread(operations.start_turn, harness.owner, harness.session, "hi", key="k")

    assert (first.was_there, again.was_there) == (False, True)
    assert first["id"] == again["id"]
