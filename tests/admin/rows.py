"""Rows as workers and users leave them, for tests of what the console shows and does."""

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from runs.foundation.host import this_host
from runs.lifecycle import liveness
from runs.models import Run, RunEvent, Session, ToolCall, Worker
from runs.states import EventType, RunStatus
from tests.chat.api.programs import a_run, open_session

__all__ = ["a_call", "a_run", "a_worker", "hanging_run", "open_session", "running_run"]


def a_worker(*, gone: bool = False, **fields: Any) -> Worker:
    """A worker that is this very process, or one whose process has ended."""
    host, boot = this_host()
    known = {
        "host": host,
        "boot": "an earlier boot" if gone else boot,
        "pid": 1,
        "pid_started": liveness.process_started(1),
        "version": "1.0.0",
    }
    return Worker.objects.create(**known | fields)


@transaction.atomic  # so that an engine beside the test sees it with its worker only
def running_run(user: User, worker: Worker | None, session: str | None = None, **fields: Any) -> Run:
    run = Run.objects.get(id=a_run(user, RunStatus.RUNNING, session))
    Run.objects.filter(id=run.id).update(worker=worker, claim=1, **fields)
    run.refresh_from_db()
    return run


def hanging_run(user: User, worker: Worker | None = None, seconds: float = 600) -> Run:
    """A run without an event for that long."""
    long_ago = timezone.now() - timedelta(seconds=seconds)
    return running_run(user, worker or a_worker(), last_event_at=long_ago)


def a_call(run: Run, name: str = "lookup", **fields: Any) -> ToolCall:
    """A tool call, and its beginning in the log."""
    call = ToolCall.objects.create(
        run=run, call_id=f"call-{name}", name=name, started_at=timezone.now(), **fields
    )
    log(run, EventType.TOOL_STARTED, tool_call=call.call_id, message="m", name=name, args=call.args)
    return call


def log(run: Run, type: str, **data: Any) -> RunEvent:
    """One more event of a run."""
    run.refresh_from_db()
    Run.objects.filter(id=run.id).update(last_seq=run.last_seq + 1)
    run.refresh_from_db()
    return RunEvent.objects.create(run=run, seq=run.last_seq, type=type, data=data, at=timezone.now())


def session_of(run_id: Any) -> Session:
    return Session.objects.get(runs=run_id)
