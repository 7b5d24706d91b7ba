"""Enters every asyncio task that is created in the context of a run with that run's work."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, TypeAlias

from runs.token import current

Runnable: TypeAlias = Coroutine[Any, Any, Any] | Generator[Any, None, Any]


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make ``loop`` enter each task with the run in whose context it will run.

    That covers the graph's own task, LangGraph's and those a tool spawns, in whatever depth. A task
    created outside of any run costs one look at a context variable. A task factory that is set already
    goes on to make the tasks.
    """
    make = loop.get_task_factory() or _make

    def factory(
        loop: asyncio.AbstractEventLoop, coroutine: Runnable, /, **options: Any
    ) -> asyncio.Future[Any]:
        task = make(loop, coroutine, **options)
        context: Context | None = options.get("context")
        token = current.get() if context is None else context.get(current)
        if token is not None and isinstance(task, asyncio.Task):
            token.work.add_task(task)
        return task

    loop.set_task_factory(factory)


def _make(loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)
