"""The history of a session for those who show it, with what they need to follow on."""

from typing import Any

from runs import agents
from runs.errors import NotFound
from runs.foundation.database import in_thread
from runs.live import follow
from runs.memory.checkpoints import process_checkpoints
from runs.models import Run, Session
from runs.reading import history as histories
from runs.wire import contract, representations


async def history(session: Session, *, limit: int | None, before: str | None) -> contract.History:
    """``{"session", "messages", "run"}`` as of one moment. Raises NotFound, Invalid."""
    agent = await in_thread(agents.for_reading, session.agent)
    async with process_checkpoints() as checkpoints:
        graph = agent.graph_on(checkpoints.reader())
        read = await histories.read(graph, session, limit=limit, before=before)
    snapshot, run = await in_thread(_around, session.id, read["run_id"])
    if run is not None:
        run["last_seq"] = read["last_seq"]  # as far as the messages go; who follows on misses nothing
    return {"session": snapshot, "messages": read["messages"], "run": run}


def _around(session_id: Any, run_id: Any) -> tuple[contract.Session, contract.Run | None]:
    snapshot = follow.snapshot(session_id)
    if snapshot is None:
        raise NotFound
    run = Run.objects.filter(id=run_id).first() if run_id else None
    return snapshot, representations.run(run) if run else None
