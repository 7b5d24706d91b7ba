"""What a scripted model was asked, what it sent, and what that cost."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, Literal, TypeAlias

from tests.provider.script import Messages, Round, Usage
from tests.provider.signals import Board

Outcome: TypeAlias = Literal["open", "completed", "closed", "failed", "refused"]


@dataclass(slots=True)
class Call:
    """One LLM call. Times are ``time.monotonic()``, which on Linux is the same clock in every process."""

    number: int  # from 1, in the order of arrival
    messages: Messages
    stream: bool
    tools: list[str] = field(default_factory=list)  # names of the tools that were offered
    outcome: Outcome = "open"  # closed: by the client; failed: by the script; refused: by the strict check
    started_at: float = field(default_factory=monotonic)
    first_chunk_at: float | None = None
    closed_at: float | None = None  # when the client's end of the connection was seen closed
    ended_at: float | None = None
    chunks: int = 0
    prompt_tokens: int = 0  # billed
    completion_tokens: int = 0  # billed; of an unfinished call as many as chunks were sent
    cached_tokens: int = 0

    @property
    def completed(self) -> bool:
        return self.outcome == "completed"

    def bill(self, played: Round) -> None:
        """Charge for what was sent; a call that was refused or failed before its first chunk is free."""
        if self.outcome == "refused" or (self.outcome == "failed" and not self.chunks):
            return
        usage = self.usage(played)
        self.prompt_tokens, self.cached_tokens = usage.prompt, usage.cached
        self.completion_tokens = usage.completion if self.completed else min(usage.completion, self.chunks)

    def usage(self, played: Round) -> Usage:
        """What the whole round costs: if it does not say so, the words of the history and its chunks."""
        words = sum(len(str(message.get("content") or "").split()) for message in self.messages)
        return played.usage or Usage(words, played.chunks)


class Ledger(Board):
    """All calls so far; changes wake whoever waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def open(self, messages: Messages, *, stream: bool, tools: list[str] | None = None) -> Call:
        call = Call(len(self.calls) + 1, messages, stream, tools or [])
        self.calls.append(call)
        self.changed()
        return call

    def sent(self, call: Call) -> None:
        """One more chunk of this call is out."""
        call.chunks += 1
        call.first_chunk_at = call.first_chunk_at or monotonic()
        self.changed()

    def end(self, call: Call, outcome: Outcome, played: Round | None = None) -> None:
        """Settle a call, once."""
        if call.outcome != "open":
            return
        call.outcome = outcome
        call.ended_at = monotonic()
        if outcome == "closed":
            call.closed_at = call.ended_at
        if played is not None:
            call.bill(played)
        self.changed()

    def clear(self) -> None:
        self.calls.clear()

    def wait_calls(self, count: int, timeout: float = 10) -> None:
        """Block until ``count`` calls have arrived."""
        self.wait_for(lambda: len(self.calls) >= count, timeout)

    async def streamed(self, chunks: int, *, call: int = 1, timeout: float = 10) -> None:
        """Await that the call of this number has sent so many chunks."""
        await self.until(lambda: len(self.calls) >= call and self.calls[call - 1].chunks >= chunks, timeout)

    async def called(self, count: int, timeout: float = 10) -> None:
        """Await the ``count``-th call."""
        await self.until(lambda: len(self.calls) >= count, timeout)

    def wait_ended(self, count: int, timeout: float = 10) -> None:
        """Block until ``count`` calls have ended, one way or another."""
        self.wait_for(self._ended(count), timeout)

    async def ended(self, count: int, timeout: float = 10) -> None:
        """Await the end of ``count`` calls."""
        await self.until(self._ended(count), timeout)

    def _ended(self, count: int) -> Callable[[], bool]:
        return lambda: sum(call.outcome != "open" for call in self.calls) >= count

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def completion_tokens(self) -> int:
        return sum(call.completion_tokens for call in self.calls)

    def to_json(self) -> dict[str, Any]:
        return {
            "calls": [{**asdict(call), "completed": call.completed} for call in self.calls],
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }
