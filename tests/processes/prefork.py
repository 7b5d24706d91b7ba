"""``python -m tests.processes.prefork``: forks processes of the product that have imported everything before.

A process of ours takes five seconds of a processor to import what it needs. Where dozens are killed and
started again within a minute, nothing else would be measured; so one process imports, and forks for each that
is wanted. What a child does after that is what ``manage.py`` does.

It is told on its standard input, a JSON object on a line: ``{"command", "environment", "output", "errors"}``,
and tells on its standard output: ``{"forked": pid}`` in the order it was told, ``{"died": pid, "code"}``.
When its input ends, it kills all children and exits.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path

import django

from tests import ROOT

_LOOK_EVERY = 0.02  # seconds between two looks for the dead


def main() -> None:
    django.setup()
    import_all()
    children = set()
    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], _LOOK_EVERY)
        if readable:
            told = os.read(0, 2**16)
            if not told:
                break
            *lines, unread = (unread + told).split(b"\n")
            for line in lines:
                children.add(pid := spawn(**json.loads(line)))
                tell(forked=pid)
        for pid in list(children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                children.discard(pid)
                tell(died=pid, code=os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def import_all() -> None:
    """What takes long. Not what opens something that a child must not share, as Twisted's reactor does."""
    for name in (
        "channels_redis.pubsub",
        "langchain_openai",
        "langgraph.checkpoint.postgres.aio",
        "procrastinate.contrib.django",
        "psycopg_pool",
        "project.asgi",
        "project.urls",
        "runs.reading.history",
        "runs.recovery.safety",
        "runs.worker.supervisor",
        "tests.processes.turns",
    ):
        import_module(name)
    assert "twisted.internet.reactor" not in sys.modules


def tell(**words: object) -> None:
    print(json.dumps(words), flush=True)


def spawn(command: list[str], environment: dict[str, str], output: str | Path, errors: str | Path) -> int:
    """Fork a child that is ``manage.py`` with this command; its process id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.environ.update(environment)
        for descriptor, path in ((0, os.devnull), (1, output), (2, errors)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            os.dup2(opened, descriptor)
            os.close(opened)
        from django.core.management import execute_from_command_line

        execute_from_command_line(["manage.py", *command])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end: waits for threads that are no daemons
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Child:
    """A process that was forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Its exit code, once it has ended; minus the number of a signal that ended it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class Prefork:
    """The other end of it. An asynchronous context manager."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._wanted: list[asyncio.Future[Child]] = []  # futures, in the order they were asked for
        self._children: dict[int, Child] = {}

    async def __aenter__(self) -> "Prefork":
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.processes.prefork"),
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._hearing = asyncio.create_task(self._hear(), name="prefork")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._hearing

    async def spawn(
        self, command: list[str], environment: dict[str, str], output: str | Path, errors: str | Path
    ) -> Child:
        """A new Child."""
        assert self._process.stdin is not None
        forked = asyncio.get_running_loop().create_future()
        self._wanted.append(forked)
        asked = {"command": command, "environment": environment, "output": str(output), "errors": str(errors)}
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        return await forked

    async def _hear(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            told = json.loads(line)
            if "forked" in told:
                child = self._children[told["forked"]] = Child(told["forked"])
                self._wanted.pop(0).set_result(child)
            else:
                self._children.pop(told["died"]).ended(told["code"])


if __name__ == "__main__":
    main()
