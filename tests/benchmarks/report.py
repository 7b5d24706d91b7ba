"""What comes out: a table for people and the same as JSON for programs."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure

HEADINGS = ("measure", "", "raw", "product", "unit", "product/raw", "aim")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "load": round(os.getloadavg()[0], 1),  # of the last minute, ours included
        "system": platform.platform(),
        "python": platform.python_version(),
        "langgraph": version("langgraph"),
    }


def table(figures: Sequence[Figure], about: dict[str, Any]) -> str:
    """All figures in columns, below a line about the machine."""
    rows = [HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(_pad(cell, widths, place) for place, cell in enumerate(row)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    about_line = (
        f"{about['cpus']} CPUs ({about['cpu']}), load {about['load']}, Python {about['python']}, "
        f"LangGraph {about['langgraph']}"
    )
    return "\n".join([about_line, "", *lines])


def as_json(figures: Sequence[Figure], about: dict[str, Any], quick: bool) -> dict[str, Any]:
    """``{"machine": {...}, "quick": bool, "figures": [Figure]}``."""
    return {"machine": about, "quick": quick, "figures": [asdict(figure) for figure in figures]}


def _cells(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    if figure.ratios is not None and figure.ratios[0] != figure.ratios[1]:
        ratio += f" ({figure.ratios[0]:.2f} to {figure.ratios[1]:.2f})"
    verdict = {None: "", True: "met", False: "missed"}[figure.met]
    return (
        figure.measure,
        figure.name,
        _number(figure.raw),
        _number(figure.product),
        figure.unit,
        ratio,
        f"{figure.aim}: {verdict}" if figure.aim else "",
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _pad(cell: str, widths: list[int], place: int) -> str:
    return cell.rjust(widths[place]) if place in (2, 3) else cell.ljust(widths[place])


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
