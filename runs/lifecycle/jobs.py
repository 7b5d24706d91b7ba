"""The job queue between processes: procrastinate keeps it in PostgreSQL.

A job says that a session may have a run to claim. It is deferred in the transaction of the change. It is only
a hint: a job that finds nothing to claim ends. A job is never repeated. It has no lock, since a dead worker
would keep that. The sweep of any worker finds what a lost job would have said, and deletes lost jobs.
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

# Jobs at one time. They are short. A process without room for runs holds up this many.
_CONCURRENCY = 4
# Seconds between two polls. New jobs are notified at once; this is what a lost notice costs.
_POLL_SECONDS = 1.0
# Seconds to wait for a connection while the database is unavailable.
_POOL_TIMEOUT = 10.0
# The shortest and the longest pause, in seconds, before the queue is tried again.
_PAUSES = (0.5, 5.0)


def defer(session_id: UUID) -> None:
    """Have a worker claim the first run of the session's queue. Part of the current transaction.

    Raises the driver's own error, which tells whether the database is unavailable.
    """
    from procrastinate.contrib.django import app
    from procrastinate.exceptions import ConnectorException

    try:
        app.configure_task(TASK, queue=QUEUE).defer(session=str(session_id))
    except ConnectorException as error:
        raise (error.__cause__ or error) from None


def forget_lost(patience: timedelta) -> int:
    """Delete jobs that are marked as begun and that nobody works on; how many there were.

    Either the worker of the job has been silent for ``patience``. Or the job began longer ago than that and
    nothing in its session awaits a claim: the database was unavailable when its end was to be written.
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
    """Pass the session of each job to ``take``, until cancelled. Wait for the queue while it is unavailable.

    A process that gives no sign of life for ``patience`` loses its jobs.
    """
    pause, longest = _PAUSES
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await _take_until_it_breaks(take, patience)
        except Exception as error:  # the queue raises whatever its database does
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error  # it broke while we were being cancelled
            logger.warning("The queue cannot be read: %s. The sweep finds what it would have told.", error)
        if asyncio.get_running_loop().time() - began > longest:
            pause = _PAUSES[0]
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _take_until_it_breaks(take: Take, patience: timedelta) -> None:
    # The app of the Django integration uses the connections of threads. The loop needs its own.
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


# A server that vanished is noticed after some 20 seconds instead of minutes.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
