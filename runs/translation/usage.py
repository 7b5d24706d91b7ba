"""Counting LLM calls and their tokens, whatever way a provider reports them.

Each call is counted once, from its callbacks, also when its chunks are not streamed to anybody. While it
is open the run carries an estimate (``open_input_tokens``, ``open_output_tokens``); when it ends the estimate
is taken back and the true usage is added. A call that fails or is cancelled, or whose provider says nothing,
adds its estimate, and the run is marked ``tokens_estimated``.

What cannot be seen: requests that a provider's client library repeats inside one call. They bill tokens
at the provider and look like one call here.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, LLMResult

_CHARACTERS_PER_TOKEN = 4
# An open call's estimate is brought up to date each time this many characters have come.
_STEP = 32


class Tokens(NamedTuple):
    """What one LLM call used."""

    input: int
    output: int


_NOTHING = Tokens(0, 0)


@dataclass(slots=True)
class UsageReports:
    """What a provider said of one call, chunk by chunk, and the total that it means.

    Three habits give the same total. One report: it is the total. Running totals: no report is smaller than
    the one before, in neither number, and the input is there each time; the last is the total. Deltas,
    including an input on the first chunk and an output on the last: some number shrinks on the way, so the
    sum is the total. Reports that are all alike although text came with each can only be deltas, since a
    running total would have grown.
    """

    last: Tokens | None = None
    sum: Tokens = _NOTHING
    growing: bool = True
    alike: bool = True
    several: bool = False

    def add(self, report: Tokens, *, with_text: bool) -> None:
        """Take one report; ``with_text`` says whether its chunk brought output."""
        if self.last is not None:
            self.several = True
            self.growing &= report.input >= self.last.input and report.output >= self.last.output
            self.alike &= report == self.last and with_text
        self.sum = Tokens(self.sum.input + report.input, self.sum.output + report.output)
        self.last = report

    @property
    def total(self) -> Tokens | None:
        """What the reports so far mean; None when there was none."""
        if self.last is None:
            return None
        steady_deltas = self.several and self.alike and self.last.output > 0
        running = self.growing and self.last.input > 0 and not steady_deltas
        return self.last if running else self.sum


@dataclass(slots=True, eq=False)
class LLMCall:
    """One call of a model, from its start to its end."""

    id: UUID
    input_estimate: int
    active_at: float  # monotonic time of its start or of the last chunk
    chunks: int = 0  # handed over by the model so far
    characters: int = 0  # of output that no report has covered
    uncounted: int = 0  # of those, since the run's estimate was last brought up to date
    reports: UsageReports = field(default_factory=UsageReports)
    counted: Tokens = _NOTHING  # what the run carries as open for this call
    ended: bool = False
    failed: bool = False
    answer: AIMessage | None = None  # the whole message, once the call has ended well
    usage: Tokens | None = None  # as the provider reported it, once the call has ended well

    @property
    def estimate(self) -> Tokens:
        """What the call would count if it ended now."""
        reported = self.reports.total or _NOTHING
        unreported = -(-self.characters // _CHARACTERS_PER_TOKEN)
        return Tokens(reported.input or self.input_estimate, reported.output + unreported)


class LLMMeter:
    """The LLM calls of one execution. ``count`` takes changes of the run's statistics, by name."""

    def __init__(self, count: Callable[..., None]) -> None:
        self._count = count
        self.open: dict[UUID, LLMCall] = {}  # the calls in progress
        self.begun = 0  # calls
        self._active_at = time.monotonic()

    @property
    def last_activity(self) -> float:
        """Monotonic time since which the quietest open call has given nothing; without one, the last end."""
        return min((call.active_at for call in self.open.values()), default=self._active_at)

    def start(self, run_id: UUID, input_estimate: int) -> LLMCall:
        """A call begins."""
        call = LLMCall(run_id, input_estimate, time.monotonic(), counted=Tokens(input_estimate, 0))
        self.open[run_id] = call
        self.begun += 1
        self._count(llm_calls=1, open_input_tokens=input_estimate)
        return call

    def chunk(self, call: LLMCall, characters: int, usage: Any) -> None:
        """A chunk came, with ``characters`` of output and the provider's ``usage_metadata`` or None."""
        call.active_at = time.monotonic()
        call.chunks += 1
        call.characters += characters
        call.uncounted += characters
        if usage:
            report = _tokens(usage)
            call.reports.add(report, with_text=characters > 0)
            if report.output:
                call.characters = 0
        if call.uncounted >= _STEP:
            self._carry(call, call.estimate)
            call.uncounted = 0

    def end(self, call: LLMCall, result: LLMResult) -> None:
        """The call ended well. What was streamed is not counted again from the whole message."""
        call.answer = _answer(result)
        known = call.reports.total or _usage_of(result, call.answer)
        exact = known is not None and known.input > 0 and (known.output > 0 or not call.characters)
        if not call.chunks and not exact:
            call.characters = _length(call.answer) if call.answer is not None else 0
        call.usage = known if exact else None
        self._close(call, call.usage or call.estimate, estimated=not exact)

    def fail(self, call: LLMCall) -> None:
        """The call broke off, or was cancelled."""
        call.failed = True
        self._close(call, call.estimate, estimated=True)

    def close(self) -> None:
        """No call goes on from here: whatever is open has failed."""
        for call in list(self.open.values()):
            self.fail(call)

    def _close(self, call: LLMCall, used: Tokens, *, estimated: bool) -> None:
        del self.open[call.id]
        call.ended = True
        call.active_at = self._active_at = time.monotonic()
        self._carry(call, _NOTHING)
        changes = {"input_tokens": used.input, "output_tokens": used.output}
        if estimated:
            changes["tokens_estimated"] = 1
        self._count(**changes)

    def _carry(self, call: LLMCall, tokens: Tokens) -> None:
        """Let the run carry ``tokens`` for this open call."""
        changes = {}
        if delta := tokens.input - call.counted.input:
            changes["open_input_tokens"] = delta
        if delta := tokens.output - call.counted.output:
            changes["open_output_tokens"] = delta
        if changes:
            self._count(**changes)
            call.counted = tokens


def estimate_input(messages: Iterable[BaseMessage], tools: Any = None) -> int:
    """Tokens that a history and the offered tools (schemas as the provider gets them) come to, roughly."""
    schemas: list[Any] | None = (
        [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else None
    )
    return count_tokens_approximately(messages, tools=schemas)


def output_length(message: BaseMessage) -> int:
    """Characters of output in a chunk: text, reasoning, and what is spelled out of tool calls."""
    content = message.content
    length = len(content) if isinstance(content, str) else sum(_block_length(block) for block in content)
    for piece in getattr(message, "tool_call_chunks", ()):
        length += len(piece.get("name") or "") + len(piece.get("args") or "")
    return length


def _block_length(block: Any) -> int:
    if isinstance(block, str):
        return len(block)
    # Pieces of tool calls come again as tool_call_chunks, and are counted there.
    texts = (block.get(name) for name in ("text", "thinking", "reasoning"))
    return sum(len(text) for text in texts if isinstance(text, str))


def _length(message: AIMessage) -> int:
    return output_length(message) + sum(
        len(call["name"] or "") + len(str(call["args"] or ""))
        for call in [*message.tool_calls, *message.invalid_tool_calls]
    )


def _tokens(usage: Any) -> Tokens:
    return Tokens(usage.get("input_tokens") or 0, usage.get("output_tokens") or 0)


def _answer(result: LLMResult) -> AIMessage | None:
    if result.generations and result.generations[0]:
        generation = result.generations[0][0]
        if isinstance(generation, ChatGeneration) and isinstance(generation.message, AIMessage):
            return generation.message
    return None


def _usage_of(result: LLMResult, answer: AIMessage | None) -> Tokens | None:
    """The usage of a call that was not streamed, or whose chunks said nothing."""
    if answer is not None and answer.usage_metadata:
        return _tokens(answer.usage_metadata)
    usage = (result.llm_output or {}).get("token_usage")
    if isinstance(usage, dict) and usage.get("prompt_tokens") is not None:
        return Tokens(usage["prompt_tokens"] or 0, usage.get("completion_tokens") or 0)
    return None
