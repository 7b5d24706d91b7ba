"""Charts: where their columns stand. A template draws them as SVG (``admin/dashboard/chart.html``).

Each column has its number as a title, and the page has a table of the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import ceil, log10
from typing import Self

# In the units of the SVG, which are pixels on a wide screen.
WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 8, 22
_LABELS = 10  # that fit below


@dataclass(frozen=True, slots=True)
class Series:
    """One number for each place along the chart."""

    name: str
    values: Sequence[int]


@dataclass(frozen=True, slots=True)
class Column:
    """One number."""

    x: float
    y: float
    width: float
    height: float
    series: int  # from 1
    title: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A word at an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Columns side by side. The series of one place are stacked or stand next to each other."""

    labels: Sequence[str]  # of the places
    series: Sequence[Series]
    stacked: bool = True

    width, height = WIDTH, HEIGHT
    left, right = _LEFT, WIDTH - _RIGHT
    bottom = HEIGHT - _BOTTOM

    @classmethod
    def single(cls, name: str, numbers: dict[str, int]) -> Self:
        """One number for each label."""
        return cls(list(numbers), [Series(name, list(numbers.values()))])

    @cached_property
    def top(self) -> int:
        """The number at the upper end of the axis: a round one, at least 1."""
        at_places: list[tuple[int, ...]] = list(zip(*(one.values for one in self.series), strict=True))
        most = max((sum(values) if self.stacked else max(values) for values in at_places), default=0)
        return _step(most) * max(1, ceil(most / _step(most)))

    @property
    def levels(self) -> list[Mark]:
        step = _step(self.top)
        return [Mark(self._y(number), short(number)) for number in range(0, self.top + 1, step)]

    @property
    def places(self) -> list[Mark]:
        """The labels for which there is room, the last one always."""
        every = ceil(len(self.labels) / _LABELS)
        last = len(self.labels) - 1
        return [
            Mark(round(self.left + (place + 0.5) * self._room, 1), label)
            for place, label in enumerate(self.labels)
            if (last - place) % every == 0
        ]

    @property
    def columns(self) -> list[Column]:
        return [column for place in range(len(self.labels)) for column in self._at(place)]

    def _at(self, place: int) -> list[Column]:
        values = [one.values[place] for one in self.series]
        below = [0, *accumulate(values)] if self.stacked else [0] * len(values)
        width = self._room * 0.8 / (1 if self.stacked else len(values))
        begin = self.left + (place + 0.1) * self._room
        return [
            Column(
                x=round(begin + (0 if self.stacked else number * width), 1),
                y=self._y(below[number] + value),
                width=round(width, 1),
                height=round(self._y(below[number]) - self._y(below[number] + value), 1),
                series=number + 1,
                title=f"{self.labels[place]}, {self.series[number].name}: {value:,}",
            )
            for number, value in enumerate(values)
            if value
        ]

    @property
    def _room(self) -> float:
        """The width of one place."""
        return (self.right - self.left) / max(len(self.labels), 1)

    def _y(self, number: int) -> float:
        return round(self.bottom - (self.bottom - _TOP) * number / self.top, 1)


def short(number: int) -> str:
    """A number in at most five characters, as at an axis."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _step(most: int) -> int:
    """A round number of which three to six reach ``most``."""
    if most <= 3:
        return 1
    size = 10 ** int(log10(most / 3))
    return max(factor * size for factor in (1, 2, 5) if factor * size <= most / 3)
