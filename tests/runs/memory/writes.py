"""A machine that lets executions write checkpoints to a storage that takes its time.

Their callers are cancelled, writes fail, savers are fenced and the process leaves, in any order. The storage
here does nothing but wait until it is told how an operation ends, so each step is over at once.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langgraph.checkpoint.memory import InMemorySaver

from runs.errors import Fenced
from runs.memory.checkpoints import fence
from runs.memory.checkpoints.saver import FencedSaver
from runs.memory.checkpoints.storage import Claim, Operation, Storage

T = TypeVar("T")

ANY = st.integers(0, 11)
# What they are given is nothing that LangGraph would give.
WRITES: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "put": lambda saver: saver.aput({}, {}, {}, {}),
    "put_writes": lambda saver: saver.aput_writes({}, [], "task"),
    "delete": lambda saver: saver.adelete_thread("thread"),
}
READ = "get"
CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    READ: lambda saver: saver.aget_tuple({}),
    **WRITES,
}


class Held(SimpleNamespace):
    """An operation in the storage: the ``claim`` it came with, what it did, and the future it waits for."""


class SlowStorage(Storage):
    """Holds each operation until somebody lets it go."""

    fenced_class = FencedSaver

    def __init__(self) -> None:
        super().__init__(versions=InMemorySaver())
        self.held: list[Held] = []

    async def read(self, operation: Operation[T]) -> T:
        return await self._hold(operation, None)

    async def write(self, operation: Operation[T], claim: Claim | None = None) -> T:
        return await self._hold(operation, claim)

    async def _hold(self, operation: Operation[T], claim: Claim | None) -> T:
        held = Held(claim=claim, done=[], until=asyncio.get_running_loop().create_future(), cut=False)
        self.held.append(held)
        try:
            await held.until
        except asyncio.CancelledError:
            held.cut = True
            raise
        return await operation(_Recorder(held.done))  # type: ignore[arg-type] # in a saver's place

    async def close(self) -> None:
        pass


class _Recorder:
    """Stands in for LangGraph's saver."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def with_allowlist(self, allowed: object) -> "_Recorder":
        return self

    async def aput(self, *_: object) -> dict[str, Any]:
        self._done.append("put")
        return {}

    async def aput_writes(self, *_: object) -> None:
        self._done.append("put_writes")

    async def adelete_thread(self, *_: object) -> None:
        self._done.append("delete")

    async def aget_tuple(self, *_: object) -> None:
        self._done.append(READ)


class Writes(RuleBasedStateMachine):
    """Two executions and the one storage of their process."""

    lives = 0  # begun so far, of all

    @initialize()
    def begin(self) -> None:
        Writes.lives += 1
        self.loop = asyncio.new_event_loop()
        fence.logger.disabled = True  # it tells of each write that fails under a cancel
        self.run(self.set_up())
        self.calls: list[SimpleNamespace] = []
        self.fences: dict[int, asyncio.Task[None]] = {}  # by saver, the task that fences it
        self.leaving: asyncio.Task[None] | None = None

    async def set_up(self) -> None:
        self.storage = SlowStorage()
        self.claims = [Claim(uuid4(), number) for number in (1, 2)]
        self.savers = [FencedSaver(self.storage, claim, "turn") for claim in self.claims]

    def teardown(self) -> None:
        fence.logger.disabled = False
        if not hasattr(self, "loop"):
            return
        for held in self.storage.held:
            if not held.until.done():
                held.until.set_result(None)
        tasks = [call.task for call in self.calls] + list(self.fences.values())
        self.run(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5) if tasks else settle())
        self.loop.close()

    @rule(s=st.integers(0, 1), kind=st.sampled_from(sorted(CALLS)), allowlisted=st.booleans())
    def call(self, s: int, kind: str, allowlisted: bool) -> None:
        saver = self.savers[s].with_allowlist([("module", "name")]) if allowlisted else self.savers[s]
        may = self.leaving is None and (kind == READ or s not in self.fences)
        before = len(self.storage.held)
        task = self.start(CALLS[kind](saver))
        began = self.storage.held[before:]
        if not may:
            assert not began, "an operation began behind a closed fence"
            assert isinstance(task.exception(), Fenced)
            return
        (held,) = began
        assert held.claim == (None if kind == READ else self.claims[s]), "a write came without its claim"
        self.calls.append(SimpleNamespace(s=s, kind=kind, held=held, task=task, cancelled=False))

    @precondition(lambda self: self.open())
    @rule(i=ANY)
    def cancel(self, i: int) -> None:
        call = self.pick(i)
        call.cancelled = True
        call.task.cancel()
        self.run(settle())

    @precondition(lambda self: self.open())
    @rule(i=ANY, fails=st.booleans())
    def let_go(self, i: int, fails: bool) -> None:
        call = self.pick(i)
        if fails:
            call.held.until.set_exception(OSError("The disk is full."))
        else:
            call.held.until.set_result(None)
        self.run(settle())
        assert call.task.done(), "an operation ended and its caller waits"
        assert call.task.cancelled() is call.cancelled, "a cancel was lost, or came from nowhere"
        if not call.cancelled:
            assert isinstance(call.task.exception(), OSError if fails else type(None))
        assert call.held.done == ([] if fails else [call.kind])

    @precondition(lambda self: len(self.fences) < 2)
    @rule(s=st.integers(0, 1))
    def fence(self, s: int) -> None:
        if s not in self.fences:
            self.fences[s] = self.start(self.savers[s].fence())

    @precondition(lambda self: self.leaving is None and len(self.calls) > 3)
    @rule()
    def leave(self) -> None:
        self.leaving = self.start(self.storage.fence.close())

    @invariant()
    def all_is_well(self) -> None:
        for call in self.calls:
            assert not call.held.cut, "an operation was cut half-way"
            assert call.held.until.done() or not call.task.done(), "a caller did not wait for its operation"
        for s, task in self.fences.items():
            under_way = [call for call in self.open() if call.s == s and call.kind != READ]
            assert task.done() is (not under_way), "a saver was fenced while it wrote"
        if self.leaving is not None:
            assert self.leaving.done() is (not self.open()), "the process left while it wrote or read"

    def open(self) -> list[SimpleNamespace]:
        """Calls whose operation has not ended."""
        return [call for call in self.calls if not call.held.until.done()]

    def pick(self, i: int) -> SimpleNamespace:
        return self.open()[i % len(self.open())]

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        async def begin() -> asyncio.Task[T]:
            task = asyncio.ensure_future(coroutine)
            await settle()
            return task

        return self.run(begin())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)


async def settle() -> None:
    """Let everything go on that can."""
    for _ in range(8):
        await asyncio.sleep(0)
