"""Waiting for what happens in another process: it cannot set an event in ours, so it is asked until it did.

The limit is generous, since it is only reached when a test fails.
"""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

PATIENT = 90.0  # seconds until a test gives up waiting for what takes a few on an idle machine


def until(question: Callable[[], T | Literal[False]], what: str = "it", seconds: float = PATIENT) -> T:
    """Ask until the answer is true; the answer."""
    deadline = time.monotonic() + seconds
    while not (found := question()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.05)
    return found
