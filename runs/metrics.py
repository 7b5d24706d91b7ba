"""What this process counts of its own work, for Prometheus. Each measurement costs about a microsecond.

Only what is not in the database is counted here. ``chat.monitoring.metrics`` reads the rest when asked.
"""

from functools import partial

from django.db import transaction
from prometheus_client import CollectorRegistry, Counter, Histogram

from runs.models import Cancellation, Run

REGISTRY = CollectorRegistry()

_ended = Counter(
    "turnkeeper_runs_ended",
    "Runs that this process ended, by status and error code (empty unless failed).",
    ["status", "error"],
    registry=REGISTRY,
)
_first_token = Histogram(
    "turnkeeper_first_token_seconds",
    "From the admission of a run to its first token, counted when the run has ended.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)
_cancelled = Histogram(
    "turnkeeper_cancel_seconds",
    "From the acceptance of a cancel to its settling, by outcome.",
    ["outcome"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
_batches = Histogram(
    "turnkeeper_event_batch_events",
    "Events in one commit of the event writer.",
    buckets=(1, 2, 5, 10, 25, 50, 100, 250, 1000),
    registry=REGISTRY,
)
_commits = Histogram(
    "turnkeeper_event_commit_seconds",
    "Time that one commit of the event writer took, waiting for its thread included.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    registry=REGISTRY,
)


def run_ended(run: Run) -> None:
    """Count a run's ending, once it is committed."""
    transaction.on_commit(_ended.labels(str(run.status), run.error_code or "").inc)
    if run.first_token_ms is not None:
        transaction.on_commit(partial(_first_token.observe, run.first_token_ms / 1000))


def cancel_settled(cancellation: Cancellation) -> None:
    """Count a cancel that was pending, once its settling is committed."""
    if cancellation.settled_at is None or cancellation.outcome is None:
        return
    outcome = str(cancellation.outcome)
    seconds = (cancellation.settled_at - cancellation.accepted_at).total_seconds()
    transaction.on_commit(partial(_cancelled.labels(outcome).observe, seconds))


def batch_committed(events: int, seconds: float) -> None:
    """Count one commit of the event writer."""
    _batches.observe(events)
    _commits.observe(seconds)
