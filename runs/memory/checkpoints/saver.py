"""The savers a graph gets: LangGraph's own, shielded and fenced."""

import asyncio
import copy
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import ERROR, RESUME
from langgraph.errors import is_invalid_resume

from runs.foundation.exceptions import described
from runs.memory.checkpoints.fence import Fence, run_shielded
from runs.memory.checkpoints.storage import Claim, Operation, Saver, Storage

T = TypeVar("T")


class ReadingSaver(BaseCheckpointSaver[str]):
    """Reads checkpoints. A cancel does not cut a read short, so none leaves a statement open.

    The methods without an ``a`` are for graphs in threads. On the event loop they raise InvalidStateError.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(serde=storage.versions.serde)
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._allowed: tuple[tuple[str, ...], ...] = ()

    @property
    def config_specs(self) -> list[Any]:
        return self._storage.versions.config_specs

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._storage.versions.get_next_version(current, channel)

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> "ReadingSaver":
        clone = copy.copy(self)  # shares the fence
        clone._allowed = (*self._allowed, *extra_allowlist)
        clone.serde = self._storage.versions.with_allowlist(clone._allowed).serde
        return clone

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._read(lambda saver: saver.aget_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        async def collect(saver: Saver) -> list[CheckpointTuple]:
            return [found async for found in saver.alist(config, filter=filter, before=before, limit=limit)]

        # All are collected first: LangGraph's savers hold their lock while they yield, so a caller that reads
        # the messages of one checkpoint before the next would wait for ever.
        for found in await self._read(collect):
            yield found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._read(
            lambda saver: saver.aget_delta_channel_history(config=config, channels=channels)
        )

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._from_thread(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        async def collect() -> Sequence[CheckpointTuple]:
            return [found async for found in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._from_thread(collect())

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._from_thread(self.aget_delta_channel_history(config=config, channels=channels))

    async def _read(self, operation: Operation[T]) -> T:
        async def read(saver: Saver) -> T:
            return await operation(saver.with_allowlist(self._allowed) if self._allowed else saver)

        return await run_shielded(partial(self._storage.read, read), self._storage.fence)

    def _from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            if asyncio.get_running_loop() is self._loop:
                work.close()
                raise asyncio.InvalidStateError("On the event loop, use the saver's async methods.")
        except RuntimeError:
            pass  # a thread without a loop, as expected
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class FencedSaver(ReadingSaver):
    """The saver of one execution. Its writes are atomic, and there are none after the execution's end.

    A write raises Fenced and changes nothing once the saver is fenced. On PostgreSQL it does so, too, once
    the run is not ``running`` under this claim: there a terminal status fences, whichever process set it.
    """

    def __init__(self, storage: Storage, claim: Claim) -> None:
        super().__init__(storage)
        self._claim = claim
        self._fence = Fence()
        # What tasks raised that had been given an answer. It may be that they refused the answer.
        self.raised_at_answers: list[Exception] = []

    async def fence(self) -> None:
        """From now on writes raise Fenced. Returns when those that had begun have ended.

        Await it before the terminal status is committed. On SQLite, whose files belong to one process, there
        is no other fence.
        """
        await self._fence.close()

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await self._write(lambda saver: saver.aput(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        kept = self._of_failed_task(writes)
        await self._write(lambda saver: saver.aput_writes(config, kept, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._write(lambda saver: saver.adelete_thread(thread_id))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._from_thread(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._from_thread(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._from_thread(self.adelete_thread(thread_id))

    def _of_failed_task(self, writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
        """What is kept of a task's writes. A task that failed or was cancelled can be answered anew.

        LangGraph would keep the answers it was given, and a later answer would count as that to its next
        question. Of an exception it would keep the ``repr``, secrets included.
        """
        error = next((value for channel, value in writes if channel == ERROR), None)
        if error is None:
            return writes
        kept = [write for write in writes if write[0] != RESUME]
        if isinstance(error, Exception) and (len(kept) < len(writes) or is_invalid_resume(error)):
            self.raised_at_answers.append(error)
        return [
            (channel, described(value) if isinstance(value, BaseException) else value)
            for channel, value in kept
        ]

    async def _write(self, operation: Operation[T]) -> T:
        write = partial(self._storage.write, operation, self._claim)
        return await run_shielded(write, self._fence, self._storage.fence)
