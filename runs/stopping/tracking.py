"""Enters every asyncio task and asynchronous generator that begins in the context of a run with its work."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeAlias

from runs.stopping.cancel_token import current

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


class _Begin:
    """What the interpreter calls with each asynchronous generator that begins."""

    def __init__(self, before: Callable[[AsyncGenerator[Any, Any]], None] | None) -> None:
        self._before = before

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        if (token := current.get()) is not None:
            token.work.add_generator(generator)
        if self._before is not None:
            self._before(generator)


def track_generators() -> None:
    """Enter asynchronous generators, too, from now until the running loop stops. Doing it again is harmless.

    The loop sets the interpreter's hooks anew whenever it begins to run, and goes on to hear of all of them.
    """
    before, end = sys.get_asyncgen_hooks()
    if not isinstance(before, _Begin):
        sys.set_asyncgen_hooks(firstiter=_Begin(before), finalizer=end)


def _make(loop: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)
