"""The callback handler that listens to the LLM calls and tools of one execution.

Callbacks know what stream chunks do not: which chunks belong to one LLM call, when a call began and how it
ended, also of calls that are not streamed; which exception ended a tool. They run ahead of the chunks, which
wait in a queue, so they count and keep times, and the chunks write the log.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langgraph.constants import TAG_NOSTREAM

from runs.translation.usage import estimate_input, output_length


class Listener(Protocol):
    """Who is told, always in the loop's thread."""

    def llm_started(self, run_id: UUID, input_estimate: int, metadata: dict[str, Any] | None) -> None:
        """An LLM call begins; ``metadata`` is the very dictionary its chunks come with, None if none will."""

    def llm_chunk(self, run_id: UUID, characters: int, usage: Any) -> None:
        """A chunk of an LLM call was handed over."""

    def llm_ended(self, run_id: UUID, result: LLMResult) -> None:
        """An LLM call has ended well."""

    def llm_failed(self, run_id: UUID) -> None:
        """An LLM call broke off."""

    def tool_began(self, run_id: UUID, call_id: str, node: str | None) -> None:
        """A tool begins to run."""

    def tool_returned(self, run_id: UUID, output: Any) -> None:
        """A tool has returned."""

    def tool_raised(self, run_id: UUID, error: BaseException, cancelled: bool) -> None:
        """A tool has raised or asks the user something; ``cancelled`` if somebody cancelled it."""


@dataclass
class Errors:
    """What broke in LLM calls and in tools, to tell where the error of a graph comes from.

    A cancel is not kept: its traceback holds the frames of the model's stream, which then stays open.
    """

    of_provider: list[BaseException] = field(default_factory=list)
    of_tools: list[BaseException] = field(default_factory=list)


class CallbackRelay(BaseCallbackHandler):
    """Brings callbacks into the loop's thread, in order: those of synchronous nodes come from others."""

    run_inline = True

    def __init__(self, listener: Listener, is_cancelled: Callable[[], bool]) -> None:
        self.errors = Errors()
        self._listener = listener
        self._is_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        if threading.get_ident() == self._thread:
            method(*args)
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed: a straggling thread talks to nobody
            self._loop.call_soon_threadsafe(method, *args)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        tools = (kwargs.get("invocation_params") or {}).get("tools")
        estimate = sum(estimate_input(history, tools) for history in messages)
        streamed = metadata and TAG_NOSTREAM not in (tags or ())
        self._tell(self._listener.llm_started, run_id, estimate, metadata if streamed else None)

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._tell(self._listener.llm_started, run_id, sum(map(len, prompts)) // 4, None)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        if self._is_cancelled() and threading.get_ident() == self._thread:
            # The cancel came together with this piece, and a wait_for of the model's client has swallowed it
            # (before Python 3.12 it does).
            raise asyncio.CancelledError
        if isinstance(chunk, ChatGenerationChunk):
            message = chunk.message
            plain_text = type(token) is str and not getattr(message, "tool_call_chunks", None)
            characters = len(token) if plain_text else output_length(message)
            self._tell(self._listener.llm_chunk, run_id, characters, getattr(message, "usage_metadata", None))
        elif isinstance(token, str):
            self._tell(self._listener.llm_chunk, run_id, len(token), None)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(self._listener.llm_ended, run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.errors.of_provider.append(error)
        self._tell(self._listener.llm_failed, run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        call_id = kwargs.get("tool_call_id") or str(run_id)  # as the tools mode of the stream names it
        self._tell(self._listener.tool_began, run_id, call_id, (metadata or {}).get("langgraph_node"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(self._listener.tool_returned, run_id, output)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.errors.of_tools.append(error)
        self._tell(self._listener.tool_raised, run_id, error, self._was_cancelled(error))

    def _was_cancelled(self, error: BaseException) -> bool:
        """What a tool raises in a cancelled run is the cancel, whatever it is. A CancelledError may also be a
        tool's own: then nobody has cancelled the task it runs in."""
        if self._is_cancelled():
            return True
        if not isinstance(error, asyncio.CancelledError) or threading.get_ident() != self._thread:
            return False
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
