"""Enters each asyncio task and asynchronous generator that begins in a run's context in its activity.

What such a task raises to end the process ends the task only.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeAlias

from runs.stopping.cancel_token import current
from runs.stopping.containment import ContainedCoroutine

Runnable: TypeAlias = Coroutine[Any, Any, Any] | Generator[Any, None, Any]


def track_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Make ``loop`` enter each task with the run in whose context it will run.

    That covers the graph's own task, LangGraph's tasks, and those that a tool spawns, in whatever depth. A
    task outside of any run costs one look at a context variable. A task factory that is set already goes on
    to make the tasks.
    """
    make = loop.get_task_factory()

    def factory(
        loop: asyncio.AbstractEventLoop, coroutine: Runnable, /, **options: Any
    ) -> asyncio.Future[Any]:
        context: Context | None = options.get("context")
        token = current.get() if context is None else context.get(current)
        if token is not None and isinstance(coroutine, Coroutine):
            coroutine = ContainedCoroutine(coroutine)
        task: asyncio.Future[Any]
        if make is None:
            task = asyncio.Task(coroutine, loop=loop, **options)
        else:
            task = make(loop, coroutine, **options)
        if token is not None and isinstance(task, asyncio.Task):
            token.activity.add_task(task)
        return task

    loop.set_task_factory(factory)


class _FirstIteration:
    """The ``firstiter`` hook: the interpreter calls it with each asynchronous generator that begins."""

    def __init__(self, before: Callable[[AsyncGenerator[Any, Any]], None] | None) -> None:
        self._before = before

    def __call__(self, generator: AsyncGenerator[Any, Any]) -> None:
        if (token := current.get()) is not None:
            token.activity.add_generator(generator)
        if self._before is not None:
            self._before(generator)


def track_generators() -> None:
    """Enter asynchronous generators, too, from now until the running loop stops. Doing it again is harmless.

    The loop sets the interpreter's hooks anew whenever it begins to run. Its own hooks are still called.
    """
    before, end = sys.get_asyncgen_hooks()
    if not isinstance(before, _FirstIteration):
        sys.set_asyncgen_hooks(firstiter=_FirstIteration(before), finalizer=end)
