"""A deletion that breaks off between the rows and the checkpoints: the words go all the same."""

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone

from runs import operations
from runs.errors import NotFound
from runs.foundation.database import in_thread
from runs.lifecycle import liveness
from runs.memory.checkpoints import Checkpoints
from runs.models import Leftover, Session
from runs.recovery import orphans, sweep
from tests.fakes import say
from tests.runs.harness import open_harness
from tests.runs.waiting import terminal


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


async def turn(harness):
    """A turn whose words are in the checkpoints."""
    harness.script.add(say("A secret."))
    await terminal(await harness.start())
    assert await saved(harness)


async def saved(harness):
    """Whether there are checkpoints of the session."""
    config = {"configurable": {"thread_id": harness.session}}
    return await harness.engine.checkpoints.reader().aget_tuple(config) is not None


def leftover(**age):
    """A session that was deleted so long ago but for its checkpoints."""
    one = Leftover.objects.create(session_id=uuid4(), tried_at=timezone.now() - timedelta(**age))
    return one.session_id


def later():
    """As if everybody had had their time."""
    Leftover.objects.update(tried_at=timezone.now() - liveness.patience() - timedelta(seconds=1))


class Broken:
    """Checkpoints some of which cannot be deleted."""

    def __init__(self, **errors):
        self.errors = errors
        self.deleted = []

    async def delete(self, ids):
        for one in ids:
            if error := self.errors.get(str(one)):
                raise error
            self.deleted.append(one)


async def test_a_deletion_that_comes_to_its_end_leaves_nothing_behind(harness):
    await turn(harness)
    await operations.delete_session(harness.owner, harness.session)
    assert not await saved(harness)
    assert not await in_thread(Leftover.objects.exists)


@pytest.mark.parametrize(
    "error", [OperationalError("it is away"), asyncio.CancelledError("the process dies")]
)
async def test_the_sweep_deletes_the_checkpoints_that_a_deletion_left(harness, monkeypatch, error):
    await turn(harness)

    async def delete(checkpoints, ids):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "delete", delete)
        with pytest.raises(type(error)):
            await operations.delete_session(harness.owner, harness.session)
    assert not await in_thread(Session.objects.exists)
    with pytest.raises(NotFound):
        await operations.delete_session(harness.owner, harness.session)
    assert await saved(harness)

    await harness.engine.sweep()
    assert await saved(harness)  # whoever deletes may be at it still

    await in_thread(later)
    swept = await sweep.recover(harness.engine.checkpoints)
    assert swept.deletions_finished == 1
    assert not await saved(harness)
    assert not await in_thread(Leftover.objects.exists)


async def test_a_deletion_whose_request_is_cut_off_is_finished_by_the_sweep(harness, monkeypatch):
    """A server may end a request with its connection."""
    await turn(harness)
    reached = asyncio.Event()

    async def delete(checkpoints, ids):
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "delete", delete)
        deleting = asyncio.create_task(operations.delete_session(harness.owner, harness.session))
        await reached.wait()
        deleting.cancel()
        await asyncio.gather(deleting, return_exceptions=True)
    assert await saved(harness)

    await in_thread(later)
    await harness.engine.sweep()
    assert not await saved(harness)
    assert not await in_thread(Leftover.objects.exists)


async def test_two_sweeps_at_once_do_not_meet(transactional_db):
    old = {await in_thread(leftover, hours=1) for _ in range(5)}
    checkpoints = Broken()
    done = await asyncio.gather(*(orphans.clear_overdue(checkpoints) for _ in range(3)))
    assert sum(done) == 5
    assert sorted(checkpoints.deleted) == sorted(old)


async def test_one_that_cannot_be_deleted_is_tried_again_later_and_holds_up_no_other(transactional_db):
    bad = await in_thread(leftover, hours=2)
    good = await in_thread(leftover, hours=1)
    checkpoints = Broken(**{str(bad): ValueError("a fault of its own")})
    assert await orphans.clear_overdue(checkpoints) == 1
    assert checkpoints.deleted == [good]
    assert await orphans.clear_overdue(Broken()) == 0
    await in_thread(later)
    assert await orphans.clear_overdue(checkpoints := Broken()) == 1
    assert checkpoints.deleted == [bad]


async def test_a_sweep_does_not_wait_for_each_when_the_checkpoints_are_away(transactional_db):
    ids = [await in_thread(leftover, hours=hours) for hours in (3, 2, 1)]
    checkpoints = Broken(**{str(one): OperationalError("it is away") for one in ids[:1]})
    assert await orphans.clear_overdue(checkpoints) == 0
    assert checkpoints.deleted == []


async def test_a_sweep_takes_so_many_and_the_next_goes_on(transactional_db, monkeypatch):
    monkeypatch.setattr(orphans, "_TAKEN", 2)
    for _ in range(3):
        await in_thread(leftover, hours=1)
    checkpoints = Broken()
    assert [await orphans.clear_overdue(checkpoints) for _ in range(3)] == [2, 1, 0]
    assert all(isinstance(one, UUID) for one in checkpoints.deleted)
