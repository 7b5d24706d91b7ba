"""Puts the gate around each call of a ToolNode, and a step around the calls that run side by side."""

import asyncio
import functools
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.errors import GraphInterrupt

from runs.foundation.values import clean
from runs.translation import tool_gate, tool_step
from runs.translation.tool_gate import GatedCall, ToolGate
from runs.translation.tool_step import Step

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest

Execute: TypeAlias = "Callable[[ToolCallRequest], Any]"
Wrapper: TypeAlias = "Callable[[ToolCallRequest, Execute], Any]"


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


def _open_step(node: "ToolNode", given: Any, config: "RunnableConfig") -> Step:
    calls, _ = node._parse_input(given)
    configurable = config.get("configurable", {})
    scratchpad = configurable.get(CONFIG_KEY_SCRATCHPAD)
    return Step(
        [clean(call["id"] or "") for call in calls],
        scratchpad if isinstance(scratchpad, PregelScratchpad) else None,
        configurable.get("checkpoint_ns", ""),
    )


async def _run_step(node: "ToolNode", run: Any, given: Any, config: "RunnableConfig", **options: Any) -> Any:
    here = tool_gate.current.get()
    if here is None:
        return await run(given, config=config, **options)
    step = _open_step(node, given, config)
    before = tool_step.current.set(step)
    try:
        result = await run(given, config=config, **options)
    except Exception as error:  # noqa: BLE001 - it is raised again
        await step.wait()
        raise _raised(step, error) from None
    finally:
        tool_step.current.reset(before)
    here.tools.forget(step.calls)
    return result


def _run_step_in_thread(
    node: "ToolNode", run: Any, given: Any, config: "RunnableConfig", **options: Any
) -> Any:
    here = tool_gate.current.get()
    if here is None or here.is_on_loop:
        return run(given, config=config, **options)
    step = _open_step(node, given, config)
    before = tool_step.current.set(step)
    try:
        result = run(given, config=config, **options)  # waits for all of its threads
    except Exception as error:  # noqa: BLE001 - it is raised again
        raise _raised(step, error) from None
    finally:
        tool_step.current.reset(before)
    here.wait_for(_forget(here, step))
    return result


async def _forget(here: ToolGate, step: Step) -> None:
    here.tools.forget(step.calls)


def _raised(step: Step, error: Exception) -> Exception:
    """What a step raises that was left by an error or a question."""
    return (step.first_question() or error) if isinstance(error, GraphInterrupt) else error


async def _call(around: Wrapper, request: "ToolCallRequest", execute: Execute) -> Any:
    here = tool_gate.current.get()
    if here is None:
        return await around(request, execute)
    call = GatedCall(here, request)

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
    here = tool_gate.current.get()
    if here is None or here.is_on_loop:
        return around(request, execute)
    call = GatedCall(here, request)

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
