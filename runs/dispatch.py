"""How a session that has something to do comes to a worker's notice. A hint, like all telling: the sweep
dispatches again what nobody took, and claim alone decides who executes what.
"""

from collections.abc import Callable
from uuid import UUID

from django.db import transaction

_offers: list[Callable[[UUID], None]] = []  # of this process: at most one


def attach(offer: Callable[[UUID], None] | None) -> None:
    """Name the one in this process who executes runs; ``offer`` may be called from any thread."""
    _offers[:] = [offer] if offer else []


def request(session_id: UUID) -> None:
    """After the current transaction has committed, have the session's first in line claimed and executed."""
    transaction.on_commit(lambda: offer(session_id))


def offer(session_id: UUID) -> None:
    """Offer the session to this process's worker now."""
    for take in _offers:
        take(session_id)
