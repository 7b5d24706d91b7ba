"""The callback handler that listens to the LLM calls and tools of one execution.

Callbacks know what stream chunks do not: which chunks belong to one LLM call, when a call began and how it
ended, also if it is not streamed, and which exception ended a tool. They run ahead of the chunks, which wait
in a queue. So the callbacks count and keep times, and the chunks write the log.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_core.tracers.context import register_configure_hook
from langgraph.constants import TAG_NOSTREAM

from runs.stopping.cancel_token import CancelToken, current_call
from runs.translation.ids import OwnIds
from runs.translation.messages import MessageTranslation
from runs.translation.tools import ToolTranslation
from runs.translation.usage import estimate_input, output_length


@dataclass
class RaisedErrors:
    """What broke in LLM calls and in tools, to tell where the error of a graph comes from.

    A cancel is not kept: its traceback holds the frames of the model's stream, which then stays open.
    """

    of_provider: list[BaseException] = field(default_factory=list)
    of_tools: list[BaseException] = field(default_factory=list)


# The handler of the run in whose context we are. LangChain adds it to each callback manager that is made
# there, also where the code of an agent passes callbacks of its own.
current: ContextVar["RunCallbacks | None"] = ContextVar("run_callbacks", default=None)
register_configure_hook(current, inheritable=True)


class RunCallbacks(BaseCallbackHandler):
    """Passes each callback on, in the loop's thread and in order. Synchronous nodes call from other threads.

    Once the run is cancelled, it refuses each start of a chain, model or tool and each further piece of a
    stream, in whatever thread. A refusal is a CancelledError, which no retry and no ``except Exception``
    takes for a failure.

    Once the loop is closed, what a thread that outlived it says is dropped.
    """

    run_inline = True

    def __init__(
        self, messages: MessageTranslation, tools: ToolTranslation, ids: OwnIds, token: CancelToken
    ) -> None:
        self._ids = ids
        self.errors = RaisedErrors()
        self._messages = messages
        self._tools = tools
        self._token = token
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def _tell(self, method: Callable[..., None], *args: Any) -> None:
        if threading.get_ident() == self._thread:
            method(*args)
            return
        with contextlib.suppress(RuntimeError):  # the loop has closed
            self._loop.call_soon_threadsafe(method, *args)

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._token.raise_if_cancelled()
        self._tell(self._tools.steps.began, run_id, parent_run_id, metadata or {})

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(self._tools.steps.ended, run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(self._tools.steps.ended, run_id)

    def on_retriever_start(self, serialized: dict[str, Any], query: str, **kwargs: Any) -> None:
        self._token.raise_if_cancelled()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._token.raise_if_cancelled()
        tools = (kwargs.get("invocation_params") or {}).get("tools")
        estimate = sum(estimate_input(history, tools) for history in messages)
        self._ids.begin(run_id, (message for history in messages for message in history))
        streamed = metadata and TAG_NOSTREAM not in (tags or ())
        self._tell(
            self._messages.llm_started, run_id, estimate, metadata if streamed else None, parent_run_id
        )

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **kwargs: Any
    ) -> None:
        self._token.raise_if_cancelled()
        self._tell(self._messages.llm_started, run_id, sum(map(len, prompts)) // 4, None)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        # On the loop, too: a wait_for of the model's client may have swallowed the cancel of the task (before
        # Python 3.12 it does if the two come together).
        self._token.raise_if_cancelled()
        if isinstance(chunk, ChatGenerationChunk):
            message = chunk.message
            if isinstance(message, AIMessageChunk):
                self._ids.in_chunk(run_id, message)
            plain_text = type(token) is str and not getattr(message, "tool_call_chunks", None)
            characters = len(token) if plain_text else output_length(message)
            self._tell(self._messages.llm_chunk, run_id, characters, getattr(message, "usage_metadata", None))
        elif isinstance(token, str):
            self._tell(self._messages.llm_chunk, run_id, len(token), None)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        for generation in (one for several in response.generations for one in several):
            if isinstance(message := getattr(generation, "message", None), AIMessage):
                self._ids.in_whole(run_id, message)
        self._ids.end(run_id)
        self._tell(self._messages.llm_ended, run_id, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.errors.of_provider.append(error)
        self._ids.end(run_id)
        self._tell(self._messages.llm_failed, run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._token.raise_if_cancelled()
        call_id = kwargs.get("tool_call_id")
        if call_id is not None:
            current_call.set(call_id)  # for what the tool starts in threads
        # Without an id, the tools mode of the stream names the call like this.
        call_id = call_id or str(run_id)
        self._tell(self._tools.began, run_id, call_id, (metadata or {}).get("langgraph_node"))

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._tell(self._tools.returned, run_id, output)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.errors.of_tools.append(error)
        self._tell(self._tools.raised, run_id, error, self._was_cancelled(error))

    def _was_cancelled(self, error: BaseException) -> bool:
        """Whether a tool's error comes from a cancel.

        In a cancelled run any error does. Elsewhere a CancelledError may be the tool's own: then nobody has
        cancelled the task it runs in.
        """
        if self._token.cancelled:
            return True
        if not isinstance(error, asyncio.CancelledError) or threading.get_ident() != self._thread:
            return False
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
