"""What is measured, as plain data: turns, batches of turns, and the figures made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles


@dataclass(slots=True)
class Turn:
    """One turn as its consumer saw it; times are ``time.monotonic()``, one clock for a whole host."""

    started: float  # when it was asked for
    first: float  # when its first token arrived
    ended: float
    tokens: int
    rows: int = 0  # events of the product's log; raw LangGraph has none
    delta_rows: int = 0  # those of them that carry text
    lags: list[float] = field(default_factory=list)  # seconds from each token's due time to its arrival

    @property
    def seconds(self) -> float:
        return self.ended - self.started


@dataclass(slots=True)
class Batch:
    """Turns that ran at once."""

    turns: list[Turn]
    cpu: float  # seconds that the serving process spent on them, all its threads

    @property
    def seconds(self) -> float:
        return max(turn.ended for turn in self.turns) - min(turn.started for turn in self.turns)

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_per_token(self) -> float:
        """In microseconds."""
        return self.cpu / self.tokens * 1e6

    @property
    def lags(self) -> list[float]:
        return [lag for turn in self.turns for lag in turn.lags]


@dataclass(slots=True)
class Figure:
    """One line of the table."""

    measure: str
    name: str
    unit: str
    raw: float | None = None
    product: float | None = None
    ratio: float | None = None  # product to raw: the median over the rounds, each taken within its round
    ratios: tuple[float, float] | None = None  # the lowest and the highest of these, which tells the noise
    aim: str = ""
    met: bool | None = None


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the values do not exceed."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]


def compared(
    measure: str,
    name: str,
    unit: str,
    rounds: Sequence[tuple[float, float]],
    *,
    at_least: float | None = None,
) -> Figure:
    """The figure of rounds ``(raw, product)``; ``at_least`` is the aim of the ratio."""
    ratios = [product / raw for raw, product in rounds if raw]
    figure = Figure(measure, name, unit, median(r for r, _ in rounds), median(p for _, p in rounds))
    if ratios:
        figure.ratio, figure.ratios = median(ratios), (min(ratios), max(ratios))
    if at_least is not None:
        figure.aim = f"ratio >= {at_least:g}"
        figure.met = figure.ratio is not None and figure.ratio >= at_least
    return figure
