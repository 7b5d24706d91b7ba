"""Tools of every kind of behaviour, each leaving marks that a test can read from outside.

``tools(marks)`` has them all. A mark is a line of a file: ``mark(x)`` writes ``x``, the others write
``NAME started`` and ``NAME ended``, so that work that outlives its run is seen, in another process too.
"""

import asyncio
import os
import shlex
import threading
import time
from pathlib import Path

from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

MARKS_VARIABLE = "TURNKEEPER_TEST_MARKS"


class Marks:
    """A file of marks."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def from_environment(cls) -> "Marks":
        """The file named by the environment, for graphs that a server builds by their dotted path."""
        return cls(Path(os.environ[MARKS_VARIABLE]))

    def write(self, mark: str) -> None:
        with self.path.open("a") as file:  # one short append, which POSIX keeps whole
            file.write(f"{mark}\n")

    def read(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, mark: str) -> int:
        return self.read().count(mark)

    async def seen(self, mark: str, times: int = 1, timeout: float = 10) -> None:
        """Await a mark; the file may be written by another process, so this polls."""
        async with asyncio.timeout(timeout):
            while self.count(mark) < times:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def wait(self, mark: str, times: int = 1, timeout: float = 10) -> None:
        """Block until a mark is there."""
        deadline = time.monotonic() + timeout
        while self.count(mark) < times:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no mark {mark!r} within {timeout} s; there are {self.read()}")
            time.sleep(0.01)


class Boom(Exception):
    """What the tool ``boom`` raises."""


def mark_tool(marks: Marks) -> BaseTool:
    @tool
    def mark(x: str, seconds: float = 0) -> str:
        """Leave the mark x after some seconds."""
        time.sleep(seconds)
        marks.write(x)
        return f"marked {x}"

    return mark


def slow_async_tool(marks: Marks) -> BaseTool:
    @tool
    async def slow_async(seconds: float) -> str:
        """Await some seconds."""
        marks.write("slow_async started")
        await asyncio.sleep(seconds)
        marks.write("slow_async ended")
        return f"awaited {seconds} s"

    return slow_async


def slow_sync_tool(marks: Marks, release: threading.Event | None = None) -> BaseTool:
    @tool
    def slow_sync(seconds: float) -> str:
        """Block a thread for some seconds and heed nothing."""
        marks.write("slow_sync started")
        (release or threading.Event()).wait(seconds)
        marks.write("slow_sync ended")
        return f"blocked for {seconds} s"

    return slow_sync


def held_sync_tool(marks: Marks) -> BaseTool:
    @tool
    def held_sync(mark: str) -> str:
        """Block a thread until somebody leaves a mark, and heed nothing."""
        marks.wait(mark, timeout=120)
        return f"seen {mark}"

    return held_sync


def held_async_tool(marks: Marks) -> BaseTool:
    @tool
    async def held_async(mark: str) -> str:
        """Await a mark that somebody leaves."""
        await marks.seen(mark, timeout=120)
        return f"seen {mark}"

    return held_async


def heeding_sync_tool(marks: Marks) -> BaseTool:
    @tool
    def heeding_sync(seconds: float) -> str:
        """Block a thread for some seconds, but stop when the run is cancelled."""
        from runs.token import cancel_token

        marks.write("heeding_sync started")
        token = cancel_token()
        if token.wait(seconds):
            marks.write("heeding_sync cancelled")
            token.raise_if_cancelled()
        marks.write("heeding_sync ended")
        return f"blocked for {seconds} s"

    return heeding_sync


def boom_tool() -> BaseTool:
    @tool
    def boom(message: str = "boom") -> str:
        """Raise."""
        raise Boom(message)

    return boom


def cancelling_tool() -> BaseTool:
    @tool
    async def cancelling() -> str:
        """Raise a CancelledError although nobody cancelled."""
        raise asyncio.CancelledError("the tool's own")

    return cancelling


def hang_tool(marks: Marks, release: threading.Event | None = None) -> BaseTool:
    @tool
    def hang() -> str:
        """Block a thread and never return, unless the test releases it."""
        marks.write("hang started")
        (release or threading.Event()).wait()
        marks.write("hang ended")
        return "released"

    return hang


def hang_async_tool(marks: Marks, release: threading.Event | None = None) -> BaseTool:
    @tool
    async def hang_async() -> str:
        """Never return, swallowing every cancellation, unless the test releases it."""
        marks.write("hang_async started")
        released = release or threading.Event()
        while not released.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                marks.write("hang_async swallowed a cancellation")
        marks.write("hang_async ended")
        return "released"

    return hang_async


def spawn_tool(marks: Marks) -> BaseTool:
    @tool
    def spawn(seconds: float) -> str:
        """Run a process, with a child of its own, for some seconds."""
        from runs.token import cancel_token

        path = shlex.quote(str(marks.path))
        wait_then_mark = f"(sleep {float(seconds)}; echo 'spawn ended' >> {path}) & wait"
        process = cancel_token().start_process(["sh", "-c", wait_then_mark])
        marks.write("spawn started")
        return f"ended with {process.wait()}"

    return spawn


def ask_tool(marks: Marks) -> BaseTool:
    @tool
    def ask(question: str) -> str:
        """Ask the user and return the answer."""
        answer = interrupt({"question": question, "options": ["Yes", "No"]})
        marks.write(f"answered {answer}")
        return f"The user answered {answer}."

    return ask


def tools(marks: Marks, release: threading.Event | None = None) -> list[BaseTool]:
    """All of them. ``release`` ends what hangs and what blocks, so that no thread outlives its test."""
    return [
        mark_tool(marks),
        slow_async_tool(marks),
        slow_sync_tool(marks, release),
        held_sync_tool(marks),
        held_async_tool(marks),
        heeding_sync_tool(marks),
        boom_tool(),
        cancelling_tool(),
        hang_tool(marks, release),
        hang_async_tool(marks, release),
        spawn_tool(marks),
        ask_tool(marks),
    ]
