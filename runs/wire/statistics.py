"""The numbers of runs, and of sessions as the sum of theirs.

The counts are written together with the events that they count (``runs.log.events``). Unknown is None.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from runs.models import Run
from runs.statements import SESSION_SUMS, sums_of_sessions
from runs.wire import contract


def of_run(run: Run) -> contract.RunStatistics:
    """The run's statistics. LLM calls in progress count with their estimate."""
    is_open = run.open_input_tokens > 0 or run.open_output_tokens > 0
    return {
        "message_count": run.message_count,
        "llm_calls": run.llm_calls,
        "tool_calls": run.tool_calls,
        "input_tokens": sum_known(run.input_tokens, run.open_input_tokens),
        "output_tokens": sum_known(run.output_tokens, run.open_output_tokens),
        "tokens_estimated": run.tokens_estimated or is_open,
        "duration_ms": run.duration_ms,
        "first_token_ms": run.first_token_ms,
    }


def of_sessions(session_ids: Iterable[UUID]) -> dict[UUID, contract.SessionStatistics]:
    """The statistics of each session, summed from its runs in one query."""
    ids = list(session_ids)
    rows = sums_of_sessions(ids)
    found = {session_id: dict(zip(SESSION_SUMS, sums, strict=True)) for session_id, *sums in rows}
    # A session without runs has no row.
    return {session_id: _of_row(found.get(session_id, {})) for session_id in ids}


def _of_row(row: dict[str, Any]) -> contract.SessionStatistics:
    return {
        "runs": row.get("runs", 0),
        "message_count": row.get("total_message_count", 0),
        "llm_calls": row.get("total_llm_calls", 0),
        "tool_calls": row.get("total_tool_calls", 0),
        "input_tokens": sum_known(row.get("total_input_tokens"), row.get("open_input", 0)),
        "output_tokens": sum_known(row.get("total_output_tokens"), row.get("open_output", 0)),
        "tokens_estimated": row.get("estimated", 0) > 0,
        "duration_ms": row.get("total_duration_ms", 0),
    }


def sum_known(known: int | None, open_tokens: int) -> int | None:
    """Tokens that are known and those of calls in progress; None while nothing is known."""
    return known + open_tokens if known is not None else (open_tokens or None)
