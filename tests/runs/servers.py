"""Servers that follow one another on the same data, in this process: each may crash or leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runs import this_process
from runs.foundation.database import in_thread
from runs.models import Worker
from runs.worker.supervisor import Supervisor

# A process id beyond what a system gives out: of a process that is gone.
NO_PROCESS = 2**22 + 1


class Servers:
    """One Supervisor at a time."""

    async def start(self) -> Supervisor:
        return await Supervisor.start()

    async def restart(self) -> Supervisor:
        """A crash, and the next server right behind it."""
        await self.crash()
        return await self.start()

    async def crash(self) -> None:
        """As kill -9 does it: from now on the server writes nothing, and it has told nobody.

        What it executed goes on until here and no further; only a thread that blocks lives on, but to no
        effect. Its worker's row says that its process is gone.
        """
        supervisor = this_process.engine
        assert isinstance(supervisor, Supervisor)
        this_process.engine = None
        executions = list(supervisor.executions.values())
        writing = supervisor.writer
        await _end(*supervisor._regular, *writing.tasks)
        if writing._commit is not None:
            await writing._commit  # a transaction happens wholly or not at all
        writing._logs.clear()
        writing._thread.shutdown(wait=False)
        for execution in executions:
            await execution._saver.fence()
        await _end(*supervisor._tasks, *supervisor._claims, *supervisor._after)
        for execution in executions:
            execution.token.activity.cancel_tasks()
            execution.token.activity.kill_processes()
        await supervisor.hub.close()
        await supervisor.checkpoints.close()
        await supervisor.bus.close()
        await in_thread(lose_process, supervisor)

    async def leave(self, seconds: float = 5.0) -> None:
        """As on SIGTERM."""
        assert this_process.engine is not None
        await this_process.engine.leave(seconds)


def lose_process(supervisor: Supervisor) -> None:
    """Let the worker's row name a process that does not exist."""
    Worker.objects.filter(id=supervisor.id).update(pid=NO_PROCESS, pid_started="1")


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def servers_of_a_test() -> AsyncIterator[Servers]:
    """The first server has started; the last one leaves at the end."""
    servers = Servers()
    await servers.start()
    try:
        yield servers
    finally:
        if this_process.engine is not None:
            await servers.leave()
