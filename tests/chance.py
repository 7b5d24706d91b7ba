"""What tests leave to chance, and how often they try.

Each test of this kind takes its seed from a variable, and prints it. Without the variable the seed is fixed,
so that the gate does the same each time; ``random`` searches for more.
"""

import os
import random

# How often each pair races, with random timing each time.
TRIES = int(os.environ.get("RACE_TRIES", "20"))


def seed(variable: str) -> int:
    """The seed that the variable names."""
    wanted = os.environ.get(variable, "1")
    chosen = random.randrange(2**32) if wanted == "random" else int(wanted)
    print(f"{variable}={chosen}")
    return chosen


def timing() -> random.Random:
    """The random moments of one test's races."""
    return random.Random(seed("RACE_SEED"))
