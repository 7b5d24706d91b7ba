"""The default agent's tools, one of each kind: quick, waiting, blocking, and one that asks first."""

import asyncio
import math
import time
from typing import Annotated

from langchain_core.tools import BaseTool, tool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import interrupt
from pydantic import Field

from chat.agent.arithmetic import MAX_EXPRESSION, evaluate
from runs.token import cancel_token

MAX_WAIT = 100  # seconds; below the engine's time limit for a tool
MAX_NUMBER = 2_000_000  # up to where primes are counted, some 40 seconds
MAX_NOTE = 2_000  # characters
_SLICE = 1_000  # numbers between two looks at the cancel token
_BREATH = 0.02  # seconds of pause after each, so that one count does not keep a core busy


@tool
def calculate(expression: Annotated[str, Field(min_length=1, max_length=MAX_EXPRESSION)]) -> str:
    """Evaluate arithmetic exactly: numbers, + - * / // % **, parentheses, sqrt(), abs(), round()."""
    return evaluate(expression)


@tool
async def wait(seconds: Annotated[float, Field(ge=0, le=MAX_WAIT)], runtime: ToolRuntime) -> str:
    """Wait for some seconds."""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        runtime.emit_output_delta(f"{math.ceil(left)} s left\n")
        await asyncio.sleep(min(1, left))
    return f"Waited for {seconds:g} seconds."


@tool
def count_primes(limit: Annotated[int, Field(ge=2, le=MAX_NUMBER)], runtime: ToolRuntime) -> str:
    """Count the prime numbers up to a limit, slowly and in a thread of its own."""
    token = cancel_token()
    found, tenth = 0, max(_SLICE, limit // 10)
    for start in range(2, limit + 1, _SLICE):
        found += sum(map(_is_prime, range(start, min(start + _SLICE, limit + 1))))
        if token.wait(_BREATH):
            token.raise_if_cancelled()
        if start // tenth != (start + _SLICE) // tenth:
            runtime.emit_output_delta(f"{found:,} primes up to {min(start + _SLICE - 1, limit):,}\n")
    return f"There are {found:,} prime numbers up to {limit:,}."


def _is_prime(number: int) -> bool:
    return number == 2 or (
        number % 2 == 1 and all(number % odd for odd in range(3, math.isqrt(number) + 1, 2))
    )


@tool
async def keep_note(text: Annotated[str, Field(min_length=1, max_length=MAX_NOTE)]) -> str:
    """Keep a note in this conversation, after the user has agreed to it."""
    answer = interrupt({"question": f"Keep this note in the conversation? {text}", "options": ["Yes", "No"]})
    if str(answer).strip().lower() in ("yes", "y", "true"):
        return f"The user agreed. Note kept: {text}"
    return f"The note was not kept: the user answered {str(answer)[:MAX_NOTE]!r}."


TOOLS: list[BaseTool] = [calculate, wait, count_primes, keep_note]

# May run a second time without harm when it is not known whether the first time came to its end.
IDEMPOTENT = frozenset({calculate.name, wait.name, count_primes.name})
