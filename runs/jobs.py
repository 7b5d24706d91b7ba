"""The queue between processes, kept by procrastinate in PostgreSQL: a job says that a session may have
something to claim.

A job is deferred in the transaction of the change that it tells of. It is a hint and nothing more: claim
decides, a job that finds nothing to claim ends quietly, none is ever repeated, and none has a lock, since a
worker that dies would keep it. What a lost job would have told, the sweep of any worker finds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from uuid import UUID

Take: TypeAlias = Callable[[UUID], Awaitable[None]]

logger = logging.getLogger(__name__)

QUEUE = "turns"
TASK = "runs.take"

# Jobs in hand at one time. A process that has no room holds up as many, so it is few; they are short.
_CONCURRENCY = 4
# The queue tells of new jobs at once; a notice that was lost costs this many seconds.
_POLL_SECONDS = 1.0
# How long, in seconds, to wait for a connection while the database is away.
_POOL_TIMEOUT = 10.0
# Seconds between two attempts to get to the queue again, from the first to the longest.
_PAUSES = (0.5, 5.0)


def defer(session_id: UUID) -> None:
    """Have some worker claim the session's first in line; part of the current transaction."""
    from procrastinate.contrib.django import app

    app.configure_task(TASK, queue=QUEUE).defer(session=str(session_id))


async def take_forever(take: Take) -> None:
    """Hand the session of each job to ``take``, until cancelled; a queue that is away is waited for."""
    pause, longest = _PAUSES
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await _take_until_it_breaks(take)
        except Exception as error:  # noqa: BLE001 (the queue raises whatever its database does)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                return  # it broke while it was being left
            logger.warning("The queue cannot be read: %s. The sweep finds what it would have told.", error)
        if asyncio.get_running_loop().time() - began > longest:
            pause = _PAUSES[0]
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _take_until_it_breaks(take: Take) -> None:
    # An app of its own: that of the Django integration belongs to threads, and to their connections.
    from procrastinate import App, PsycopgConnector
    from procrastinate.contrib.django import connector_params

    connector = PsycopgConnector(
        kwargs={**connector_params(), **_KEEPALIVE}, min_size=1, max_size=_CONCURRENCY, timeout=_POOL_TIMEOUT
    )
    app = App(connector=connector)

    @app.task(name=TASK, queue=QUEUE)
    async def job(session: str) -> None:
        await take(UUID(session))

    async with app.open_async():
        await connector.execute_query_async(_FORGET_LOST, queue=QUEUE)
        await app.run_worker_async(
            queues=[QUEUE],
            concurrency=_CONCURRENCY,
            fetch_job_polling_interval=_POLL_SECONDS,
            shutdown_graceful_timeout=0,  # what a job has begun goes on without it
            delete_jobs="always",
            install_signal_handlers=False,  # the process has its own way to leave
        )


# What a worker had in hand that died: nobody would ever take it, and nobody has to.
_FORGET_LOST = (
    "DELETE FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'doing' AND worker_id IS NULL"
)
# A server that vanished without a word is noticed after some 20 seconds instead of minutes.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
