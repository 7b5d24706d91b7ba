"""Stands around each call of a ToolNode, so that what is said of its effect is known.

The start of a call is committed before its tool begins. Nothing begins after a cancel. What a call has given
is kept and given again when its step starts over, after a question or a crash. LangGraph numbers the
questions of a step and the graphs that are called in it by the order in which they come, and calls run side
by side; so each call gets numbers of its own, and its answers reach no other call.
"""

import asyncio
import concurrent.futures
import functools
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD, CONFIG_KEY_STREAM
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt, _interrupt_id

from runs.foundation.values import clean
from runs.stopping.cancel_token import CancelToken, RunCancelled
from runs.translation import bounds
from runs.translation.tools import Kept, ToolTranslation

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

T = TypeVar("T")

Execute: TypeAlias = "Callable[[ToolCallRequest], Any]"
Wrapper: TypeAlias = "Callable[[ToolCallRequest, Execute], Any]"

# Seconds that a call waits until all that came before it was told. Only a graph whose stream somebody else
# reads is not told of at once.
_PATIENCE = 1.0
# Of the numbers of the graphs that are called in a step, so many belong to each call.
_GRAPHS_OF_A_CALL = 1000
# No answer has this number.
_UNANSWERED = 1_000_000


class Mark:
    """Goes through the stream of a graph behind all that was told before it."""

    def __init__(self) -> None:
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pass_by(self) -> None:
        """It has come out of the stream."""
        if not self.passed.done():
            self.passed.set_result(None)


class _Step:
    """The calls that one execution of a ToolNode runs side by side, in the order of their message."""

    def __init__(self, calls: Sequence[str], scratchpad: PregelScratchpad | None, namespace: str) -> None:
        self.calls = calls
        self._scratchpad = scratchpad
        self._namespace = namespace
        self._answered = len(scratchpad.resume) if scratchpad is not None else 0
        self._begun: list[int] = []
        self._ended: set[int] = set()
        self._questions: dict[int, GraphInterrupt] = {}
        self._all_ended = asyncio.Event()
        self._lock = threading.Lock()

    def begin(self, call_id: str) -> int:
        """The place of a call among them. An id that repeats stands for each of its places in turn."""
        with self._lock:
            places = [place for place, one in enumerate(self.calls) if one == call_id]
            place = next((place for place in places if place not in self._begun), len(self.calls))
            self._begun.append(place)
            return place

    def numbers(self, place: int, earlier: "Sequence[Kept | None]") -> "_Numbers | None":
        """The numbers of the call at this place; ``earlier`` is what the calls before it have given."""
        if self._scratchpad is None:
            return None
        questions = 0
        for kept in earlier:
            if kept is None:
                # A call before it may still have questions to ask. So far none of its own was answered.
                return _Numbers(self._scratchpad, _UNANSWERED, place, takes_answers=False)
            questions += kept.questions
        return _Numbers(self._scratchpad, questions, place, takes_answers=True)

    def asked(self, place: int, question: GraphInterrupt) -> None:
        """The call at this place asks the user something."""
        self._questions[place] = question

    def end(self, place: int) -> None:
        """The call at this place goes no further."""
        self._ended.add(place)
        if len(self._ended) >= len(self.calls):
            self._all_ended.set()

    async def wait(self) -> None:
        """Until no call goes on. When one asks, LangGraph does not wait for the others."""
        await self._all_ended.wait()

    def first_question(self) -> GraphInterrupt | None:
        """The question of the first call that asks. The others ask after it has been answered."""
        if not self._questions:
            return None
        (interrupts,) = self._questions[min(self._questions)].args[:1] or ((),)
        return GraphInterrupt(tuple(map(self._numbered, interrupts)))

    def _numbered(self, interrupt: Interrupt) -> Interrupt:
        """With the id of the question that comes next, if it is one of the step and not of a graph in it.

        A call before it may have taken an answer since it was asked.
        """
        if self._scratchpad is None or interrupt.id != _interrupt_id(self._namespace, self._answered):
            return interrupt
        return replace(interrupt, id=_interrupt_id(self._namespace, len(self._scratchpad.resume)))


class _Numbers:
    """What LangGraph counts for one call: its questions, and the graphs that it calls."""

    def __init__(
        self, shared: PregelScratchpad, first_question: int, place: int, *, takes_answers: bool
    ) -> None:
        questions = itertools.count(first_question)
        graphs = itertools.count(place * _GRAPHS_OF_A_CALL)
        self._first = first_question
        self._asked = 0
        self._shared = shared

        def next_question() -> int:
            self._asked += 1
            return next(questions)

        self.scratchpad = replace(
            shared,
            interrupt_counter=next_question,
            subgraph_counter=graphs.__next__,
            get_null_resume=shared.get_null_resume if takes_answers else _no_answer,
        )

    @property
    def answered(self) -> int:
        """How many questions of the call were answered."""
        return max(min(self._asked, len(self._shared.resume) - self._first), 0)


def _no_answer(consume: bool = False) -> None:
    return None


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
gate: ContextVar[ToolGate | None] = ContextVar("tool_gate", default=None)
_step: ContextVar[_Step | None] = ContextVar("tool_step", default=None)


def wrap(nodes: "Iterable[ToolNode]") -> None:
    """Put a gate around each call of these ToolNodes, once."""
    for node in nodes:
        if not hasattr(node, "_gate"):
            node._gate = True  # type: ignore[attr-defined]
            _wrap(node)


def _wrap(node: "ToolNode") -> None:
    run_step, run_step_in_thread = node.afunc, node.func
    own, own_in_thread = node._awrap_tool_call, node._wrap_tool_call
    around = own or (functools.partial(_in_thread, own_in_thread) if own_in_thread else _execute)
    node._awrap_tool_call = functools.partial(_call, around)
    node._wrap_tool_call = functools.partial(_call_in_thread, own_in_thread or _execute)
    node.afunc = functools.partial(_run_step, node, run_step)
    node.func = functools.partial(_run_step_in_thread, node, run_step_in_thread)


def _execute(request: "ToolCallRequest", execute: Execute) -> Any:
    return execute(request)


async def _in_thread(own: Wrapper, request: "ToolCallRequest", execute: Execute) -> Any:
    """Call an agent's synchronous wrapper where it does not block the loop."""
    loop = asyncio.get_running_loop()

    def execute_on_loop(changed: "ToolCallRequest") -> Any:
        return asyncio.run_coroutine_threadsafe(execute(changed), loop).result()

    return await loop.run_in_executor(None, copy_context().run, own, request, execute_on_loop)


# A step


def _open_step(node: "ToolNode", given: Any, config: "RunnableConfig") -> _Step:
    calls, _ = node._parse_input(given)
    configurable = config.get("configurable", {})
    scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
    return _Step(
        [clean(call["id"] or "") for call in calls],
        scratchpad if isinstance(scratchpad, PregelScratchpad) else None,
        configurable.get("checkpoint_ns", ""),
    )


async def _run_step(node: "ToolNode", run: Any, given: Any, config: "RunnableConfig", **options: Any) -> Any:
    here = gate.get()
    if here is None:
        return await run(given, config=config, **options)
    step = _open_step(node, given, config)
    before = _step.set(step)
    try:
        result = await run(given, config=config, **options)
    except Exception as error:  # noqa: BLE001 - it is raised again
        await step.wait()
        raise _raised(step, error) from None
    finally:
        _step.reset(before)
    here.tools.forget(step.calls)
    return result


def _run_step_in_thread(
    node: "ToolNode", run: Any, given: Any, config: "RunnableConfig", **options: Any
) -> Any:
    here = gate.get()
    if here is None or here.is_on_loop:
        return run(given, config=config, **options)
    step = _open_step(node, given, config)
    before = _step.set(step)
    try:
        result = run(given, config=config, **options)  # waits for all of its threads
    except Exception as error:  # noqa: BLE001 - it is raised again
        raise _raised(step, error) from None
    finally:
        _step.reset(before)
    here.wait_for(_forget(here, step))
    return result


async def _forget(here: ToolGate, step: _Step) -> None:
    here.tools.forget(step.calls)


def _raised(step: _Step, error: Exception) -> Exception:
    """What a step raises that was left by an error or a question."""
    return (step.first_question() or error) if isinstance(error, GraphInterrupt) else error


# A call


class _Call:
    """One call of a step. Its coroutines run on the loop; the rest may be called from any thread."""

    def __init__(self, here: ToolGate, request: "ToolCallRequest") -> None:
        self.id = clean(request.tool_call["id"] or "")
        self._here = here
        self._config = request.runtime.config
        self._namespace: tuple[str, ...] = ()
        self._numbers: _Numbers | None = None
        self._step = _step.get() or _Step([self.id], None, "")
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


async def _call(around: Wrapper, request: "ToolCallRequest", execute: Execute) -> Any:
    here = gate.get()
    if here is None:
        return await around(request, execute)
    call = _Call(here, request)

    async def start_and_execute(changed: "ToolCallRequest") -> Any:
        await call.start(changed)
        return await execute(changed)

    try:
        kept = await call.enter()
        return kept.result if kept is not None else await call.end(await around(request, start_and_execute))
    except GraphInterrupt as question:
        call.ask(question)
        raise
    finally:
        call.leave()


def _call_in_thread(around: Wrapper, request: "ToolCallRequest", execute: Execute) -> Any:
    here = gate.get()
    if here is None or here.is_on_loop:
        return around(request, execute)
    call = _Call(here, request)

    def start_and_execute(changed: "ToolCallRequest") -> Any:
        here.wait_for(call.start(changed))
        return execute(changed)

    try:
        kept = here.wait_for(call.enter())
        return (
            kept.result if kept is not None else here.wait_for(call.end(around(request, start_and_execute)))
        )
    except GraphInterrupt as question:
        call.ask(question)
        raise
    finally:
        call.leave()
