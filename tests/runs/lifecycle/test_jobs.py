"""The queue between processes, as far as it needs none. With all of them: tests/processes/test_cluster.py."""

import asyncio
from datetime import timedelta

from runs.lifecycle import jobs


async def test_a_queue_that_breaks_while_it_is_being_left_ends_as_it_was_told(monkeypatch):
    begun = asyncio.Event()

    async def break_when_left(take, patience):
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the database is away") from None

    monkeypatch.setattr(jobs, "_take_until_it_breaks", break_when_left)
    queue = asyncio.create_task(jobs.take_forever(lambda session: None, timedelta(seconds=1)))
    await begun.wait()
    queue.cancel()
    await asyncio.wait({queue})
    assert queue.cancelled(), "it would be taken for a loop that broke"
