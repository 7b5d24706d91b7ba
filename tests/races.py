"""How often races are run, and with which timing.

``RACE_TRIES`` (default 20) is how often each pair races, with random timing each time; ``RACE_SEED`` repeats
a sequence that was printed.
"""

import os
import random

TRIES = int(os.environ.get("RACE_TRIES", "20"))
SEED = int(os.environ.get("RACE_SEED", random.randrange(2**32)))


def timing() -> random.Random:
    """The random moments of one test, repeatable from what it prints."""
    print(f"RACE_SEED={SEED}")
    return random.Random(SEED)
