"""``python -m tests.benchmarks [--quick] [--only NAME ...]``: raw LangGraph against the product, in one run.
``python -m tests.benchmarks hops [--list]``: our functions on the way of a message and of a cancel.

Progress goes to stderr, the table to stdout, and the same as JSON to the file that ``BENCH_JSON`` names.
Exits with 0 whether or not the aims are met: a benchmark informs, and a loaded machine misses any aim.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.benchmarks import hops, report
from tests.benchmarks.figures import Figure
from tests.benchmarks.measures import FULL, MEASURES, QUICK, Bench, Sizes
from tests.benchmarks.product import product
from tests.benchmarks.raw import raw_langgraph
from tests.provider import provider_process


async def measure(names: list[str], sizes: Sizes) -> list[Figure]:
    """The figures of the named measures."""
    with tempfile.TemporaryDirectory(prefix="turnkeeper-bench-") as directory, provider_process() as provider:
        environment = {**os.environ, "OPENAI_BASE_URL": provider.base_url}
        async with AsyncExitStack() as stack:
            bench = Bench(
                await stack.enter_async_context(raw_langgraph(Path(directory) / "raw.sqlite3", environment)),
                await stack.enter_async_context(product(Path(directory), environment)),
                provider,
                sizes,
                say,
            )
            figures = []
            for name in names:
                say(name)
                figures += await MEASURES[name](bench)
            return figures


def say(line: str) -> None:
    """Tell people how far it is."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", nargs="?", choices=["hops"], help="count hops instead of measuring speed")
    parser.add_argument("--list", action="store_true", help="name each hop")
    parser.add_argument("--quick", action="store_true", help="a few seconds: whether it works, not how fast")
    parser.add_argument(
        "--only", action="append", choices=list(MEASURES), help="this measure; may be repeated"
    )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that the processes end, too
    if asked.what == "hops":
        hops.main(with_names=asked.list)
        return
    figures = asyncio.run(measure(asked.only or list(MEASURES), QUICK if asked.quick else FULL))
    about = report.machine()
    print(report.table(figures, about))
    if path := os.environ.get("BENCH_JSON"):
        Path(path).write_text(json.dumps(report.as_json(figures, about, asked.quick), indent=2) + "\n")


if __name__ == "__main__":
    main()
