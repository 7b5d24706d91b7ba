"""Runs in random interleavings of everything that may happen to them, on the database.

``STATEFUL_EXAMPLES`` (default 6, and 2 on PostgreSQL, where a life takes ten times as long) is how many lives
are tried, ``STATEFUL_STEPS`` (40) how long each is, and ``STATEFUL_SEED`` repeats one that was printed;
"random" takes a new one.

Then the guards of the engine are broken on purpose, one at a time (``mutations``), and the machine has to
notice each. The first of each invariant is tried by default, with ``STATEFUL_MUTATIONS=all`` all are.

``make lives`` looks for more with both.
"""

import os
import random

import pytest
from django.db import IntegrityError
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import ON_SERVICES
from tests.runs.memory.writes import Writes
from tests.runs.mutations import BREAKS, GUARDS, break_guard, machine_for
from tests.runs.session_machine import SessionMachine

EXAMPLES = int(os.environ.get("STATEFUL_EXAMPLES", "2" if ON_SERVICES else "6"))
STEPS = int(os.environ.get("STATEFUL_STEPS", "40"))
# The gate tries the same lives each time; to look for more, give it "random".
_wanted = os.environ.get("STATEFUL_SEED", "1")
SEED = random.randrange(2**32) if _wanted == "random" else int(_wanted)

# Of ten lives and more, Hypothesis begins with a tenth in which as little happens as possible.
FEW = 8


def live(machine, examples, number):
    run_state_machine_as_test(
        seed(number)(type(machine.__name__, (machine,), {})),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            report_multiple_bugs=False,
            database=None,
            phases=[Phase.generate],  # a failure is repeated by its seed; to shrink it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )


def live_again_and_again(machine):
    for number in range(1, 13):
        live(machine, FEW, number)


@pytest.mark.django_db
@pytest.mark.timeout(3600)
def test_whatever_happens_to_runs_every_invariant_holds():
    print(f"STATEFUL_SEED={SEED}")
    live(SessionMachine, EXAMPLES, SEED)


def test_whatever_happens_to_executions_their_checkpoints_are_whole_and_fenced():
    print(f"STATEFUL_SEED={SEED}")
    live(Writes, EXAMPLES, SEED)


FIRST = [next(iter(breaks)) for breaks in GUARDS.values()]


@pytest.mark.sqlite("asks whether the machine would notice, which is the same on any database")
@pytest.mark.django_db
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BREAKS if os.environ.get("STATEFUL_MUTATIONS") == "all" else FIRST)
def test_the_machine_notices_that(name, monkeypatch):
    break_guard(monkeypatch, name)
    machine = machine_for(name)
    before = machine.lives

    with pytest.raises((AssertionError, IntegrityError)) as found:
        live_again_and_again(machine)

    # The last of its lives is the repetition of the one in which it was found.
    told = str(found.value).splitlines()[:1] or [""]
    print(f"{name} | {told[0]} | {machine.lives - before - 1}")


def test_every_guard_is_there():
    assert not [name for name, (owner, function, _) in BREAKS.items() if not hasattr(owner, function)]
