"""The measures. Each takes the bench and returns its figures; raw and product take turns within every round.

The machine is never quiet, so what counts is a ratio taken within one round, and the median of these.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any, TypeAlias
from uuid import uuid4

from tests.benchmarks.agents import order
from tests.benchmarks.cluster import stops_across_processes
from tests.benchmarks.figures import Batch, Figure, compared, percentile
from tests.benchmarks.product import Product
from tests.benchmarks.raw import RawLangGraph
from tests.provider import RemoteProvider, Round, Silence, numbered, text

# The aims; a figure that has none only informs.
THROUGHPUT_AIM = 0.75  # of raw tokens per second, with many runs
STOP_AIM = 20.0  # milliseconds, the median
STOP_ACROSS_AIM = 60.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    first_tokens: int  # turns whose first token is timed
    runs: int  # at once
    tokens: int  # of each of those
    single_tokens: int  # of a run that is alone
    http_tokens: int
    rate: int  # tokens a second of each run, when paced
    paced_seconds: int
    calls: int  # of a tool, in a turn
    calling_turns: int
    stops: int  # tries of each kind
    turns: tuple[int, ...]  # of a growing session, those that are reported


FULL = Sizes(
    rounds=5,
    first_tokens=40,
    runs=50,
    tokens=400,
    single_tokens=2000,
    http_tokens=100,
    rate=50,
    paced_seconds=6,
    calls=20,
    calling_turns=20,
    stops=40,
    turns=(1, 50, 100, 200),
)
QUICK = Sizes(
    rounds=1,
    first_tokens=3,
    runs=5,
    tokens=40,
    single_tokens=100,
    http_tokens=20,
    rate=50,
    paced_seconds=1,
    calls=3,
    calling_turns=2,
    stops=2,
    turns=(1, 10),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """Both sides, the provider that they share, and how much to measure."""

    raw: RawLangGraph
    product: Product
    provider: RemoteProvider
    sizes: Sizes
    say: Callable[[str], None]  # progress, for people

    async def pair(self, agent: str, words: str, count: int = 1) -> tuple[Batch, Batch]:
        """The same turns on both sides, one side after the other, in an order that is left to chance.

        Raises RuntimeError unless both have given the same tokens, down to the last.
        """
        sides: list[RawLangGraph | Product] = [self.raw, self.product]
        random.shuffle(sides)
        batches = {side: await side.batch(agent, words, count) for side in sides}
        raw, product = batches[self.raw], batches[self.product]
        if raw.tokens != product.tokens:
            raise RuntimeError(f"Raw LangGraph gave {raw.tokens} tokens, the product {product.tokens}.")
        return raw, product

    async def rounds(self, agent: str, words: str, count: int = 1) -> list[tuple[Batch, Batch]]:
        """``pair`` once to warm up and then as often as the sizes say."""
        await self.pair(agent, words, min(count, 2))
        pairs = []
        for number in range(self.sizes.rounds):
            raw, product = await self.pair(agent, words, count)
            self.say(
                f"  round {number + 1} of {self.sizes.rounds}: raw {raw.tokens_per_second:.0f} tokens/s, "
                f"product {product.tokens_per_second:.0f}"
            )
            pairs.append((raw, product))
        return pairs


Measure: TypeAlias = Callable[[Bench], Awaitable[list[Figure]]]


async def first_token(bench: Bench) -> list[Figure]:
    """From asking for a turn to its first token, on a new session."""
    await bench.pair("lean", order(1))
    pairs = [await bench.pair("lean", order(5)) for _ in range(bench.sizes.first_tokens)]
    times = [
        tuple((batch.turns[0].first - batch.turns[0].started) * 1000 for batch in pair) for pair in pairs
    ]
    figures = []
    for name, percent in (("median", 50), ("95th percentile", 95)):
        raw, product, added = (
            percentile(values, percent)
            for values in ([r for r, _ in times], [p for _, p in times], [p - r for r, p in times])
        )
        figures.append(Figure("first_token", name, "ms", raw, product))
        figures.append(Figure("first_token", f"added, {name}", "ms", product=added))
    return figures


async def throughput(bench: Bench) -> list[Figure]:
    """Tokens per second at full speed, of one run and of many, and what a token costs."""
    sizes = bench.sizes
    single = await bench.rounds("lean", order(sizes.single_tokens))
    many = await bench.rounds("lean", order(sizes.tokens), sizes.runs)
    return [
        _speed("throughput", f"1 run of {sizes.single_tokens} tokens", single),
        _speed("throughput", f"{sizes.runs} runs of {sizes.tokens} tokens", many, at_least=THROUGHPUT_AIM),
        _cost("throughput", f"CPU, {sizes.runs} runs", many),
        *_rows("throughput", "1 run", single),
        *_rows("throughput", f"{sizes.runs} runs", many),
    ]


async def pace(bench: Bench) -> list[Figure]:
    """Whether many runs that are given their tokens at a fixed rate pass them on at that rate."""
    sizes = bench.sizes
    tokens = sizes.rate * sizes.paced_seconds
    pairs = await bench.rounds("lean", order(tokens, sizes.rate), sizes.runs)
    name = f"{sizes.runs} runs at {sizes.rate} tokens/s"
    kept = [
        (sizes.paced_seconds / raw.seconds, sizes.paced_seconds / product.seconds) for raw, product in pairs
    ]
    figures = [compared("pace", f"{name}: pace kept", "of 1", kept)]
    for percent, called in ((50, "median"), (95, "95th percentile")):
        late = [tuple(percentile(batch.lags, percent) * 1000 for batch in pair) for pair in pairs]
        figures.append(
            Figure(
                "pace",
                f"{called} from due to arrival",
                "ms",
                *(median(side) for side in zip(*late, strict=True)),
            )
        )
    return [*figures, _cost("pace", f"CPU, {name}", pairs), *_rows("pace", name, pairs)]


async def http_throughput(bench: Bench) -> list[Figure]:
    """Tokens per second with a model over HTTP: what people have."""
    sizes = bench.sizes
    words = order(sizes.http_tokens)
    bench.provider.clear()
    bench.provider.add(Round(numbered(sizes.http_tokens)), marker=words, forever=True)
    pairs = await bench.rounds("http", words, sizes.runs)
    name = f"{sizes.runs} runs of {sizes.http_tokens} tokens"
    return [
        _speed("http", name, pairs),
        _cost("http", f"CPU, {sizes.runs} runs", pairs),
        *_rows("http", name, pairs),
    ]


async def tools(bench: Bench) -> list[Figure]:
    """What calls of a tool cost, in a row and together, and how much of that is the engine's gate."""
    sides: dict[str, tuple[RawLangGraph | Product, str]] = {
        "raw": (bench.raw, "tools"),
        "gated": (bench.product, "tools"),
        "ungated": (bench.product, "ungated"),
    }
    calls = bench.sizes.calls
    figures = []
    for how in ("in a row", "together"):
        turns: list[dict[str, Batch]] = []
        for _ in range(bench.sizes.calling_turns + 1):
            taken = {}
            for name in random.sample(list(sides), len(sides)):
                side, agent = sides[name]
                taken[name] = await side.batch(agent, f"call {calls} {how}")
            turns.append(taken)
        del turns[0]  # it warmed up
        for name, called in (("gated", ""), ("ungated", ", without the gate")):
            seconds = [(taken["raw"].seconds * 1000, taken[name].seconds * 1000) for taken in turns]
            figures.append(compared("tools", f"{calls} calls {how}{called}", "ms", seconds))
            # Of all together, since the clock of a process is coarser than a turn.
            raw, product = (sum(taken[one].cpu for taken in turns) / len(turns) for one in ("raw", name))
            figures.append(
                compared("tools", f"CPU, {calls} calls {how}{called}", "ms", [(raw * 1000, product * 1000)])
            )
        gate = median((taken["gated"].seconds - taken["ungated"].seconds) / calls for taken in turns)
        figures.append(Figure("tools", f"the gate, {how}", "ms/call", product=gate * 1000))
    return figures


async def stop(bench: Bench) -> list[Figure]:
    """From sending the cancel on the socket to the provider's seeing its stream closed."""
    figures = []
    answers = {
        "speaking provider": Round(numbered(3000, delay=0.02)),
        "silent provider": Round(text("one"), text(" two"), Silence()),
    }
    for kind, answer in answers.items():
        bench.provider.clear()
        bench.provider.add(answer, forever=True)
        taken = []
        async with bench.product.conversations("http", bench.sizes.stops + 1) as conversations:
            for number, conversation in enumerate(conversations, start=1):
                after = random.randint(1, 2 if kind.startswith("silent") else 10)
                sent = await conversation.cancelled_turn("Speak.", after)
                taken.append((await _closed_at(bench.provider, number) - sent) * 1000)
        del taken[0]  # it warmed up
        figures += _stops("stop", kind, taken, STOP_AIM)
    return figures


async def stop_across(bench: Bench) -> list[Figure]:
    """The same from one web process to a worker that another web process gave the turn."""
    taken = await stops_across_processes(bench.provider, bench.sizes.stops + 1)
    del taken[0]  # it warmed up
    return _stops("stop_across", "across processes", [seconds * 1000 for seconds in taken], STOP_ACROSS_AIM)


async def growth(bench: Bench) -> list[Figure]:
    """What a short turn costs as its session grows, and what the session weighs."""
    figures = []
    last = bench.sizes.turns[-1]
    thread = str(uuid4())
    words = order(3)
    await bench.pair("default", words)
    before = bench.product.database_bytes()
    pairs: list[tuple[float, float]] = []
    raw_cpu = product_cpu = 0.0
    async with bench.product.conversations("default") as (conversation,):
        for _ in range(last):
            raw = await bench.raw.batch("default", words, threads=[thread])
            spent = bench.product.cpu_seconds()
            product = await conversation.turn(words)
            raw_cpu += raw.cpu
            product_cpu += bench.product.cpu_seconds() - spent
            pairs.append((raw.turns[0].seconds * 1000, product.seconds * 1000))
    for number in bench.sizes.turns:
        around = pairs[max(0, number - 6) : number + 4] if number > 1 else pairs[:3]
        figures.append(compared("growth", f"turn {number}", "ms", around))
    # Of all together, since the clock of a process is coarser than a turn.
    figures.append(
        compared("growth", "CPU of a turn", "ms", [(raw_cpu / last * 1000, product_cpu / last * 1000)])
    )
    for name, size in bench.product.database_bytes().items():
        grown = (size - before[name]) / 1024
        figures.append(Figure("growth", f"{name} after {last} turns", "KiB", product=grown))
    return figures


MEASURES: dict[str, Measure] = {
    "first_token": first_token,
    "throughput": throughput,
    "pace": pace,
    "http": http_throughput,
    "tools": tools,
    "stop": stop,
    "stop_across": stop_across,
    "growth": growth,
}


def _speed(
    measure: str, name: str, pairs: list[tuple[Batch, Batch]], *, at_least: float | None = None
) -> Figure:
    speeds = [(raw.tokens_per_second, product.tokens_per_second) for raw, product in pairs]
    return compared(measure, name, "tokens/s", speeds, at_least=at_least)


def _cost(measure: str, name: str, pairs: list[tuple[Batch, Batch]]) -> Figure:
    costs = [(raw.cpu_per_token, product.cpu_per_token) for raw, product in pairs]
    return compared(measure, name, "us/token", costs)


def _rows(measure: str, name: str, pairs: list[tuple[Batch, Batch]]) -> list[Figure]:
    """How many rows of the log a token takes: the less, the better the commits are shared."""
    turns = [turn for _, product in pairs for turn in product.turns]
    tokens = sum(turn.tokens for turn in turns)
    deltas, rows = sum(turn.delta_rows for turn in turns), sum(turn.rows for turn in turns)
    return [
        Figure(measure, f"text rows, {name}", "rows/token", product=deltas / tokens),
        Figure(measure, f"all rows, {name}", "rows/token", product=rows / tokens),
    ]


def _stops(measure: str, kind: str, taken: list[float], aim: float) -> list[Figure]:
    """The figures of stops that took so many milliseconds."""
    middle = percentile(taken, 50)
    return [
        Figure(measure, f"{kind}, median", "ms", product=middle, aim=f"<= {aim:g} ms", met=middle <= aim),
        Figure(measure, f"{kind}, 95th percentile", "ms", product=percentile(taken, 95)),
    ]


async def _closed_at(provider: RemoteProvider, calls: int) -> float:
    """When the provider saw the last of so many calls closed by the client."""
    deadline = monotonic() + 30
    while True:
        ledger: dict[str, Any] = await asyncio.to_thread(provider.ledger)
        outcomes = [call["outcome"] for call in ledger["calls"]]
        if len(outcomes) == calls and outcomes[-1] == "closed":
            return float(ledger["calls"][-1]["closed_at"])
        if monotonic() > deadline:
            raise RuntimeError(f"The provider was to see call {calls} closed and has seen {outcomes}.")
        await asyncio.sleep(0.01)
