"""The ``work`` command with a stand-in for the engine. Run as ``python -m tests.runs.worker_under_test``.

A callback ends its event loop, with a thread and a task at work that do not end.
"""

import asyncio
import sys
import threading
from unittest import mock

import django

django.setup()

from runs.foundation import database  # noqa: E402
from runs.lifecycle import dispatch  # noqa: E402
from runs.management.commands import work  # noqa: E402


class Engine:
    """Works for ever, if it is let."""

    broken = asyncio.Event()
    task: asyncio.Task[None]

    @classmethod
    async def start(cls) -> "Engine":
        threading.Thread(target=threading.Event().wait, name="a tool that does not end").start()
        cls.task = asyncio.create_task(stay())
        asyncio.get_running_loop().call_later(0.1, sys.exit, "from a callback")
        return cls()


async def stay() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


if __name__ == "__main__":
    with (
        mock.patch.object(work, "Supervisor", Engine),
        mock.patch.object(dispatch, "is_shared", return_value=True),
        mock.patch.object(database, "is_migrated", return_value=True),
    ):
        work.Command().handle()
