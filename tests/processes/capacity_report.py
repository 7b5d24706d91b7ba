"""What the figures of ``tests.processes.capacity`` say: a table, and a model of many more processes."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import linear_regression

from tests.processes.server import Data

RATE = 50  # tokens per second of a turn
KINDS = ("web", "worker", "postgresql", "redis")

_USABLE = 0.7  # of a core: what is left is for bursts, the garbage collector and the sweep
_DEFAULT_CONNECTIONS = 100  # PostgreSQL's max_connections, unless it is set
_LEAST = 1e-6  # cores; what the clock of a process cannot see is taken for this


def slope(values: Mapping[int, float]) -> float:
    """How much the values, by number, grow by each; never nothing."""
    return max(_LEAST, linear_regression(list(values), list(values.values())).slope)


def table(found: Mapping[tuple[int, int], Data]) -> Iterator[str]:
    """Lines: the figures of each formation, ``{(webs, workers): figures}``."""
    yield f"Milliseconds of a core per second, for each turn of {RATE} tokens/s with its socket:"
    yield "web  worker |   web  worker  PostgreSQL  Redis | commits/s  commands/s | further, idle socket"
    for (webs, workers), one in found.items():
        turn = {kind: one["turn"][kind] * 1000 for kind in KINDS}
        yield (
            f"{webs:3}  {workers:6} | {turn['web']:5.1f} {turn['worker']:7.1f} {turn['postgresql']:11.1f}"
            f" {turn['redis']:6.1f} | {one['commits']:9.1f} {one['commands']:11.1f} |"
            f" {one['follower'] * 1000:7.2f} {one['idle'] * 1000:12.3f}"
        )
    yield ""
    yield "At rest, in milliseconds of a core per second; memory of an idle socket; how late tokens were:"
    for (webs, workers), one in found.items():
        rest = {kind: one["rest"].cpu[kind] * 1000 for kind in KINDS}
        late = ", ".join(f"{lag:.0f} ms with {count}" for count, lag in one["lags"].items())
        yield (
            f"{webs:3}  {workers:6} | web {rest['web']:.1f}, worker {rest['worker']:.1f}, PostgreSQL"
            f" {rest['postgresql']:.1f}, Redis {rest['redis']:.1f}; {one['idle_kib']:.0f} KiB;"
            f" {one['connections']} connections; 95th percentile {late} turns"
        )


def model(found: Mapping[tuple[int, int], Data], totals: Sequence[int] = (10, 100, 1000)) -> Iterator[str]:
    """Lines: what so many processes carry if each has a core, and what ends first.

    The costs of a turn are those of the largest formation that was measured. What each further process costs
    PostgreSQL at rest is the slope over the formations.
    """
    largest = max(found, key=sum)
    one, processes = found[largest], sum(largest)
    turn = one["turn"]
    idle = slope({sum(formation): each["rest"].cpu["postgresql"] for formation, each in found.items()})
    commits = slope({sum(formation): each["rest"].commits for formation, each in found.items()})
    connections = one["connections"] / processes
    share = turn["worker"] / (turn["worker"] + turn["web"])
    yield f"A worker carries {_USABLE / turn['worker']:.0f} turns. A web process carries the sockets of"
    yield f"{_USABLE / turn['web']:.0f} turns, or {_USABLE / one['follower']:.0f} further ones on turns, or"
    yield f"{_USABLE / one['idle']:.0f} on which nothing happens."
    yield f"Each process at rest costs PostgreSQL {idle * 1000:.1f} ms of a core and {commits:.1f} commits"
    yield "a second."
    yield f"Redis, which has one core, ends at {_USABLE / turn['redis']:.0f} turns."
    yield ""
    yield "processes  workers  turns at once  PostgreSQL cores  commits/s  connections  Redis core"
    for total in totals:
        workers = max(1, min(total - 1, round(total * share)))
        turns = min(_USABLE * workers / turn["worker"], _USABLE * (total - workers) / turn["web"])
        yield (
            f"{total:9}  {workers:7}  {turns:13.0f}  {turns * turn['postgresql'] + total * idle:16.1f}"
            f"  {turns * one['commits'] + total * commits:9.0f}  {total * connections:11.0f}"
            f"  {turns * turn['redis']:10.2f}"
        )
    yield ""
    full = _DEFAULT_CONNECTIONS / connections
    yield f"PostgreSQL's {_DEFAULT_CONNECTIONS} connections end at {full:.0f} processes as busy as these."
