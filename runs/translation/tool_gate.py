"""Stands around each call of a ToolNode, so that what is said of its effect is known.

The start of a call is committed before its tool begins. Nothing begins after a cancel. What a call has given
is kept and given again when its step starts over, after a question or a crash.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_STREAM
from langgraph.errors import GraphInterrupt

from runs.foundation.values import clean
from runs.stopping.cancel_token import CancelToken, RunCancelled
from runs.translation import bounds, tool_step
from runs.translation.tool_step import Numbers, Step
from runs.translation.tools import Kept, ToolTranslation

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.prebuilt.tool_node import ToolCallRequest

T = TypeVar("T")

# Seconds that a call waits until all that came before it was told. Only a graph whose stream somebody else
# reads is not told of at once.
_PATIENCE = 1.0


class Mark:
    """Goes through the stream of a graph behind all that was told before it."""

    def __init__(self) -> None:
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pass_by(self) -> None:
        """It has come out of the stream."""
        if not self.passed.done():
            self.passed.set_result(None)


class ToolGate:
    """The gate of one execution. Made on its event loop; calls come from any thread."""

    def __init__(
        self, tools: ToolTranslation, token: CancelToken, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self.tools = tools
        self._token = token
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def told(self, config: "RunnableConfig") -> tuple[str, ...]:
        """Wait until all that was streamed before was told; the namespace of the graph."""
        stream = config["configurable"].get(CONFIG_KEY_STREAM)
        if stream is None:
            return ()
        mark = Mark()
        stream(((), "tools", mark))
        try:
            async with asyncio.timeout(_PATIENCE):
                await mark.passed
        except TimeoutError:
            pass
        return tuple(str(config["configurable"].get("checkpoint_ns") or "").split("|")[:-1])

    async def start(self, request: "ToolCallRequest", namespace: tuple[str, ...]) -> None:
        """Commit the start of a call. Raises RunCancelled, also if the log does not take it.

        Of an ordinary error the ToolNode would make a result, and the graph would go on.
        """
        self._token.raise_if_cancelled()
        if request.tool is None:
            return  # the model made its name up; the ToolNode says so
        node = (request.runtime.config.get("metadata") or {}).get("langgraph_node")
        call = request.tool_call
        self.tools.begin(call["id"] or "", call["name"], call["args"], node, namespace)
        try:
            await self._flush()
        except Exception as error:
            raise RunCancelled("The start of a tool cannot be logged.") from error
        self._token.raise_if_cancelled()

    @property
    def is_on_loop(self) -> bool:
        """Whether this is the loop's thread. Of a graph that blocks it, nothing can be told meanwhile."""
        return threading.get_ident() == self._thread

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, for another thread."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except concurrent.futures.CancelledError:
            raise RunCancelled("The run was cancelled.") from None


# The gate of the execution in whose context we are.
current: ContextVar[ToolGate | None] = ContextVar("tool_gate", default=None)


class GatedCall:
    """One call of a step. Its coroutines run on the loop; the rest may be called from any thread."""

    def __init__(self, here: ToolGate, request: "ToolCallRequest") -> None:
        self.id = clean(request.tool_call["id"] or "")
        self._here = here
        self._config = request.runtime.config
        self._namespace: tuple[str, ...] = ()
        self._numbers: Numbers | None = None
        self._step = tool_step.current.get() or Step([self.id], None, "")
        self._place = self._step.begin(self.id)

    async def enter(self) -> "Kept | None":
        """Wait until the message that asks for it was told. Returns what it has given before."""
        self._namespace = await self._here.told(self._config)
        tools = self._here.tools
        if (kept := tools.kept(self.id)) is not None:
            return kept
        earlier = [tools.kept(one) for one in self._step.calls[: self._place]]
        self._numbers = self._step.numbers(self._place, earlier)
        if self._numbers is not None:
            own = {CONFIG_KEY_SCRATCHPAD: self._numbers.scratchpad}
            self._config["configurable"] = {**self._config["configurable"], **own}
        return None

    async def start(self, request: "ToolCallRequest") -> None:
        """Commit its start; ``request`` is what a wrapper of the agent's made of it."""
        await self._here.start(request, self._namespace)

    async def end(self, result: Any) -> Any:
        """It has given this; what of it the graph gets."""
        await self._here.told(self._config)  # what it reported stands before its end
        result = bounds.bounded(result)
        answered = self._numbers.answered if self._numbers is not None else 0
        self._here.tools.end(self.id, result, answered)
        return result

    def ask(self, question: GraphInterrupt) -> None:
        """It asks the user something."""
        self._step.asked(self._place, question)

    def leave(self) -> None:
        """It goes no further."""
        self._step.end(self._place)
