"""What a scripted model says: rounds of small steps, chosen by queue, by marker or by a function.

A round is one LLM call. It is written with a few words::

    Script(
        call("mark", x="1"),                                  # round 1: a tool call
        say("The mark is made.", usage=Usage(150, 30)),       # round 2: an answer
    )
    Round(words("one two three", delay=0.05), Hold("middle"), text(" four"))
    Round(text("Let me see."), spelled("mark", {"x": "1"}, names=2, arguments=10, delay=0.2))
    Round(Failure(429, "slow down")), Round(text("one"), Silence()), Round(text("one"), Disconnect())

Steps and rounds are plain data, so that another process can load them as JSON.
"""

import itertools
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from tests.provider.signals import Gate

Messages: TypeAlias = list[dict[str, Any]]  # in OpenAI's form


@dataclass(frozen=True, slots=True)
class Text:
    """One chunk of text."""

    text: str
    delay: float = 0  # seconds before it


@dataclass(frozen=True, slots=True)
class CallPiece:
    """One chunk of a tool call; pieces with the same ``index`` make one call."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None
    delay: float = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Say nothing for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop at a gate of the script until the test opens it."""

    gate: str


@dataclass(frozen=True, slots=True)
class Silence:
    """Say nothing any more until the client leaves; with ``keep_alive`` a comment every so many seconds."""

    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Break the connection off: by a reset, or by an end of the stream in the wrong place."""

    reset: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """As the first step an HTTP error, later an error inside the stream."""

    status: int = 500
    message: str = "The server had an error while processing your request."
    retry_after: float | None = None


Step: TypeAlias = Text | CallPiece | Pause | Hold | Silence | Disconnect | Failure
Steps: TypeAlias = Step | Iterable["Steps"]
Style: TypeAlias = Literal["last", "cumulative", "delta", "none"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a completed call bills, in tokens; ``cached`` and ``reasoning`` are parts of the two."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, init=False)
class Round:
    """One LLM call. Without ``usage`` it bills the words of the history and a token per chunk."""

    steps: tuple[Step, ...]
    usage: Usage | None
    style: Style  # how the usage is reported while streaming
    fresh: bool  # fresh ids for its calls each time it is played, so that a repeated round stays well-formed

    def __init__(
        self, *steps: Steps, usage: Usage | None = None, style: Style = "last", fresh: bool = True
    ) -> None:
        object.__setattr__(self, "steps", tuple(_flat(steps)))
        object.__setattr__(self, "usage", usage)
        object.__setattr__(self, "style", style)
        object.__setattr__(self, "fresh", fresh)

    @property
    def chunks(self) -> int:
        """How many chunks it sends when nothing comes in between."""
        return sum(isinstance(step, Text | CallPiece) for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [{"step": type(step).__name__, **asdict(step)} for step in self.steps],
            "usage": asdict(self.usage) if self.usage else None,
            "style": self.style,
            "fresh": self.fresh,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Round":
        return cls(
            [_STEPS[step.pop("step")](**step) for step in map(dict, data["steps"])],
            usage=Usage(**data["usage"]) if data.get("usage") else None,
            style=data.get("style", "last"),
            fresh=data.get("fresh", True),
        )


_STEPS: dict[str, Callable[..., Step]] = {
    kind.__name__: kind for kind in (Text, CallPiece, Pause, Hold, Silence, Disconnect, Failure)
}


def _flat(steps: Iterable[Steps]) -> Iterable[Step]:
    for step in steps:
        if isinstance(step, Iterable):
            yield from _flat(step)
        else:
            yield step


def text(chunk: str, delay: float = 0) -> Step:
    """One chunk."""
    return Text(chunk, delay)


def words(sentence: str, delay: float = 0) -> list[Step]:
    """A chunk for each word, ``delay`` seconds before each."""
    parts = sentence.split(" ")
    return [Text(part if number == 0 else f" {part}", delay) for number, part in enumerate(parts)]


def numbered(count: int, delay: float = 0) -> list[Step]:
    """The words ``w1 w2 w3 ...``, a chunk each; easy to compare after a cut."""
    return words(" ".join(f"w{number}" for number in range(1, count + 1)), delay)


_ids = itertools.count(1)


def spelled(
    name: str,
    arguments: dict[str, Any] | str | None = None,
    *,
    id: str | None = None,  # noqa: A002
    index: int = 0,
    names: int = 1,
    pieces: int = 1,
    delay: float = 0,
) -> list[Step]:
    """A tool call spelled out: the id, the name in ``names`` parts, the arguments in ``pieces`` parts.

    ``arguments`` may be text, so that it can be broken JSON. Real providers send id and name at once,
    which is ``names=1``; with more the id comes alone first.
    """
    spelling = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    call_id = id or f"call_{next(_ids)}"
    parts: list[Step] = []
    if names == 1:
        parts.append(CallPiece(index, id=call_id, name=name, arguments="", delay=delay))
    else:
        parts.append(CallPiece(index, id=call_id, delay=delay))
        parts += [CallPiece(index, name=part, delay=delay) for part in _cut(name, names)]
    return parts + [CallPiece(index, arguments=part, delay=delay) for part in _cut(spelling, pieces)]


def _cut(whole: str, pieces: int) -> list[str]:
    size = max(1, -(-len(whole) // pieces))
    return [whole[start : start + size] for start in range(0, len(whole), size)] or [""]


def say(sentence: str, *, delay: float = 0, usage: Usage | None = None, style: Style = "last") -> Round:
    """A round that answers, word by word."""
    return Round(words(sentence, delay), usage=usage, style=style)


def call(tool: str, *, usage: Usage | None = None, style: Style = "last", **arguments: Any) -> Round:
    """A round that asks for one tool call."""
    return Round(spelled(tool, arguments), usage=usage, style=style)


def calls(
    *asked: tuple[str, dict[str, Any] | str], usage: Usage | None = None, style: Style = "last"
) -> Round:
    """A round that asks for several tool calls in one message."""
    return Round(
        [spelled(name, arguments, index=index) for index, (name, arguments) in enumerate(asked)],
        usage=usage,
        style=style,
    )


@dataclass(slots=True)
class _Queue:
    """Rounds for the calls that match."""

    rounds: deque[Round]
    marker: str  # to be found in the last user message
    system: str  # to be found in the system message
    forever: bool  # the last round is repeated

    def matches(self, user: str, system: str) -> bool:
        return bool(self.rounds) and self.marker in user and self.system in system

    def take(self) -> Round:
        return self.rounds[0] if self.forever and len(self.rounds) == 1 else self.rounds.popleft()


class Script:
    """Chooses the round for each call; safe to use from any thread.

    The most particular queue that matches and has rounds left goes first, then ``respond``, then
    ``default``. A call that nothing was scripted for gets ``default``, so count calls in the ledger.
    """

    def __init__(
        self,
        *rounds: Round,
        respond: Callable[[Messages], Round | None] | None = None,
        default: Round | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._queues: list[_Queue] = []
        self._gates: dict[str, Gate] = {}
        self._given_out: set[str] = set()  # ids of tool calls
        self.respond = respond
        self.default = default or say("All right.")
        self.add(*rounds)

    def add(self, *rounds: Round, marker: str = "", system: str = "", forever: bool = False) -> None:
        """Queue rounds, all or only for calls whose last user or system message contains a text."""
        with self._lock:
            for queue in self._queues:
                if (queue.marker, queue.system, queue.forever) == (marker, system, False) and not forever:
                    queue.rounds.extend(rounds)
                    return
            self._queues.append(_Queue(deque(rounds), marker, system, forever))
            self._queues.sort(key=lambda queue: (not queue.system, -len(queue.marker), queue.forever))

    def clear(self) -> None:
        """Forget all rounds that were not used."""
        with self._lock:
            self._queues.clear()

    @property
    def left(self) -> int:
        """How many queued rounds nobody has asked for yet."""
        with self._lock:
            return sum(len(queue.rounds) for queue in self._queues)

    def gate(self, name: str) -> Gate:
        """The gate of this name; there is one from the first time somebody names it."""
        with self._lock:
            return self._gates.setdefault(name, Gate())

    def open_all(self) -> None:
        """Open every gate, so that nothing waits after the test."""
        with self._lock:
            for gate in self._gates.values():
                gate.open()

    def next(self, messages: Messages) -> Round:
        """The round for a call with these messages."""
        user = _last(messages, "user")
        system = _last(messages, "system") + _last(messages, "developer")
        with self._lock:
            chosen = next((queue.take() for queue in self._queues if queue.matches(user, system)), None)
        if chosen is None and self.respond is not None:
            chosen = self.respond(messages)
        return self._with_fresh_ids(chosen or self.default)

    def _with_fresh_ids(self, chosen: Round) -> Round:
        """The round, with other call ids when these have been given out before."""
        names = {step.id for step in chosen.steps if isinstance(step, CallPiece) and step.id}
        if not names or not chosen.fresh:
            return chosen
        with self._lock:
            if names.isdisjoint(self._given_out):
                self._given_out.update(names)
                return chosen
        new = {name: f"call_{next(_ids)}" for name in sorted(names)}
        steps = [
            replace(step, id=new[step.id]) if isinstance(step, CallPiece) and step.id else step
            for step in chosen.steps
        ]
        return Round(steps, usage=chosen.usage, style=chosen.style)


def _last(messages: Sequence[dict[str, Any]], role: str) -> str:
    content = next((m.get("content") for m in reversed(messages) if m.get("role") == role), "") or ""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
