"""The queue between processes, kept by procrastinate in PostgreSQL: a job says that a session may have
something to claim.

A job is deferred in the transaction of the change that it tells of. It is a hint and nothing more: claim
decides, a job that finds nothing to claim ends quietly, none is ever repeated, and none has a lock, since a
worker that dies would keep it. What a lost job would have told, the sweep of any worker finds; so it does
the jobs that nobody works on any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from django.conf import settings
from django.db import connection

from runs.models import Run

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
    """Have some worker claim the session's first in line; part of the current transaction.

    Raises what the driver raises, since that is what says whether the database is away.
    """
    from procrastinate.contrib.django import app
    from procrastinate.exceptions import ConnectorException

    try:
        app.configure_task(TASK, queue=QUEUE).defer(session=str(session_id))
    except ConnectorException as error:
        raise (error.__cause__ or error) from None


def forget_lost(patience: timedelta) -> int:
    """Delete the jobs that are in nobody's hands although they look it; how many there were.

    Either the worker that had one in hand has been silent for ``patience``. Or it was begun longer ago than
    that and nothing in its session awaits a claim: its end could not be written, since the database was away.
    """
    waiting, values = Run.objects.awaiting_claim().values("session").query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_LOST.format(waiting=waiting), [patience.total_seconds(), QUEUE, *values])
        return cursor.rowcount


_FORGET_LOST = """
DELETE FROM procrastinate_jobs WHERE status = 'doing' AND id IN (
    SELECT job.id
    FROM procrastinate_jobs AS job, (SELECT now() - make_interval(secs => %s) AS since) AS patience
    WHERE job.queue_name = %s AND job.status = 'doing' AND (
        NOT EXISTS (
            SELECT 1 FROM procrastinate_workers AS worker
            WHERE worker.id = job.worker_id AND worker.last_heartbeat > patience.since
        ) OR (
            NOT EXISTS (
                SELECT 1 FROM procrastinate_events AS event
                WHERE event.job_id = job.id AND event.type = 'started' AND event.at > patience.since
            ) AND (job.args ->> 'session')::uuid NOT IN ({waiting})
        )
    )
    FOR UPDATE OF job SKIP LOCKED
)
"""


async def take_forever(take: Take, patience: timedelta) -> None:
    """Hand the session of each job to ``take``, until cancelled; a queue that is away is waited for.

    Jobs in hand are lost to a process that gives no sign of life for ``patience``.
    """
    pause, longest = _PAUSES
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await _take_until_it_breaks(take, patience)
        except Exception as error:  # the queue raises whatever its database does
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error  # it broke while it was being left
            logger.warning("The queue cannot be read: %s. The sweep finds what it would have told.", error)
        if asyncio.get_running_loop().time() - began > longest:
            pause = _PAUSES[0]
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _take_until_it_breaks(take: Take, patience: timedelta) -> None:
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
        await app.run_worker_async(
            queues=[QUEUE],
            concurrency=_CONCURRENCY,
            fetch_job_polling_interval=_POLL_SECONDS,
            shutdown_graceful_timeout=0,  # what a job has begun goes on without it
            delete_jobs="always",
            update_heartbeat_interval=settings.RUNS_HEARTBEAT,
            stalled_worker_timeout=patience.total_seconds(),
            install_signal_handlers=False,  # the process has its own way to leave
        )


# A server that vanished without a word is noticed after some 20 seconds instead of minutes.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
