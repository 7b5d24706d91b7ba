"""What a change of a run's status does to its numbers."""

from datetime import datetime

from runs.models import Run
from runs.wire.statistics import sum_known


def close(run: Run) -> None:
    """On the ending of a run: count the LLM calls in progress at their estimate."""
    if run.open_input_tokens or run.open_output_tokens:
        run.input_tokens = sum_known(run.input_tokens, run.open_input_tokens)
        run.output_tokens = sum_known(run.output_tokens, run.open_output_tokens)
        run.open_input_tokens = run.open_output_tokens = 0
        run.tokens_estimated = True


def pause(run: Run, now: datetime) -> None:
    """Add the time since the claim to the run's duration: executing counts, queueing and waiting do not."""
    if run.claimed_at is not None:
        run.duration_ms += max(int((now - run.claimed_at).total_seconds() * 1000), 0)
        run.claimed_at = None
