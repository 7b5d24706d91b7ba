"""Looks for more than the gate does: ``python -m tests.runs.search [EXAMPLES]``.

Tries EXAMPLES (200) random lives of runs and of checkpoints, and breaks every guard on purpose. It prints its
seed, which repeats what it found.
"""

import os
import sys

import pytest


def main() -> int:
    os.environ.setdefault("STATEFUL_SEED", "random")
    os.environ["STATEFUL_EXAMPLES"] = sys.argv[1] if len(sys.argv) > 1 else "200"
    os.environ["STATEFUL_GUARDS"] = "all"
    return pytest.main(["-q", "-rA", "tests/runs/test_stateful.py"])


if __name__ == "__main__":
    sys.exit(main())
