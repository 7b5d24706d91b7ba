"""Child processes that are restarted when they end, and that end with this process."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chat.cluster import end_with_parent

logger = logging.getLogger(__name__)

# Seconds to wait before a process is started again: at first, at most, and after how many it did well.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
HEALTHY_AFTER = 30.0


@dataclass(eq=False, repr=False)  # the environment may hold passwords
class Child:
    """One process, restarted until it is told to end.

    It may tell about itself on its standard output, in lines ``Name: value``; it is ready when it has told
    all that it is ``expected`` to.
    """

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] | None = None
    expected: Collection[str] = ()
    folder: Path | None = None
    log: Path | None = None
    user: str = ""
    end: signal.Signals = signal.SIGTERM  # asks it to end in good order
    orphan: signal.Signals = signal.SIGKILL  # what it gets when we are gone
    before: Callable[[], None] = lambda: None  # puts into order what it needs, in a thread
    told: dict[str, str] = field(default_factory=dict, init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event, init=False)  # has told what is expected
    _ending: bool = field(default=False, init=False)
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, and from now on again and again."""
        self._task = asyncio.create_task(self._keep(), name=f"child {self.name}")

    async def stop(self, seconds: float) -> None:
        """Ask it to end, and make it end after ``seconds``."""
        self._ending = True
        if self._task is None:
            return
        self._signal(self.end)
        await asyncio.wait({self._task}, timeout=seconds)
        self._signal(signal.SIGKILL)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE
        while True:
            began = clock()
            code = await self._run_once()
            if self._ending:
                return
            if clock() - began > HEALTHY_AFTER:
                pause = FIRST_PAUSE
            logger.warning("%s ended with %s; it is started again in %g s.", self.name, code, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_once(self) -> int:
        """Start it and wait for its end; its exit code."""
        await asyncio.to_thread(self.before)
        command = [
            sys.executable,
            "-I",
            "-S",
            end_with_parent.__file__,
            str(os.getpid()),
            self.orphan.name,
            self.user,
        ]
        with self.log.open("a") if self.log else contextlib.nullcontext() as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *map(str, self.command),
                env=self.environment,
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if self.expected else log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for us, who end all in the right order
            )
        try:
            await self._listen(self._process)
            return await self._process.wait()
        finally:
            self.ready.clear()
            self.told.clear()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            self.ready.set()
            return
        async for line in process.stdout:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            self.told[name] = value
            if self.told.keys() >= set(self.expected):
                self.ready.set()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
