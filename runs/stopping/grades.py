"""Stops everything of a run by grades: ask, cancel, kill, give up."""

import asyncio
from collections.abc import Callable

from django.conf import settings

from runs.stopping.cancel_token import CancelToken

# Seconds that a process group needs to vanish after SIGKILL, and a stream to close.
_AFTER_KILL = 0.5


async def stop(
    token: CancelToken,
    graph_task: "asyncio.Task[None] | None",
    *,
    on_straggler_ended: Callable[[], None],
    on_result: Callable[[str], None],
) -> None:
    """Stop all that is alive of the run. What does not stop is given up on (``RunActivity.give_up``).

    ``RUNS_CANCEL_GRACE`` is the time for what heeds a cancel: half of it for the graph, half for its tools.
    The callbacks are passed to ``RunActivity.give_up``.
    """
    activity = token.activity
    grace = settings.RUNS_CANCEL_GRACE
    token.cancel()
    activity.terminate_processes()
    if graph_task is not None:
        graph_task.cancel()
        await asyncio.wait({graph_task}, timeout=grace / 2)
    # Tasks that tools started, and tasks that swallowed their first CancelledError.
    activity.cancel_tasks()
    if not await activity.wait_until_idle(grace / 2):
        activity.kill_processes()
        if not await activity.wait_until_idle(_AFTER_KILL):
            activity.give_up(on_straggler_ended, on_result)
    await activity.close_generators(_AFTER_KILL)
