"""Tasks are ended, also those that do not hear of it at once."""

import asyncio

import pytest
from django.db import OperationalError

from runs import this_process
from runs.foundation import tasks
from runs.lifecycle import dispatch, jobs
from runs.recovery import sweep
from runs.worker.supervisor import Supervisor


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(tasks, "_PAUSE", 0.01)


async def deaf_to(cancels, begun=None):
    """Goes on for so many cancels."""
    if begun is not None:
        begun.set()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if cancels == 0:
                raise
            cancels -= 1


async def breaks_when_cancelled():
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("its connection is gone")


async def test_whoever_loses_a_cancel_gets_another():
    ending = [asyncio.create_task(deaf_to(cancels)) for cancels in range(3)]
    ending += [asyncio.create_task(breaks_when_cancelled()), asyncio.create_task(asyncio.sleep(0))]
    await asyncio.sleep(0)

    await asyncio.wait_for(tasks.end(ending), 10)

    assert all(task.done() for task in ending)


async def test_nothing_is_ended_at_once():
    await tasks.end([])


async def test_a_worker_that_cannot_begin_does_not_hang_in_its_queue(transactional_db, monkeypatch):
    begun = asyncio.Event()

    async def recover(*of, **how):
        await begun.wait()
        raise OperationalError("the database is away")

    monkeypatch.setattr(dispatch, "is_shared", lambda: True)
    monkeypatch.setattr(jobs, "take_forever", lambda *of: deaf_to(1, begun))
    monkeypatch.setattr(sweep, "recover", recover)

    with pytest.raises(OperationalError):
        await asyncio.wait_for(Supervisor.start(), 20)

    assert this_process.engine is None
