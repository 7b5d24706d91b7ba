"""Workers: the processes that execute runs, and their state."""

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from runs.admin.base import ConsoleAdmin, ago_column, id_column
from runs.admin.formatting import ago, badge, clock, short
from runs.admin.lists import attention
from runs.models import Run, Worker
from runs.states import RunStatus

_RUNS = 100


@admin.register(Worker)
class WorkerAdmin(ConsoleAdmin):
    """Processes that execute runs."""

    list_display = (
        "process", "state", "heartbeat", "active_runs", "straggling", "version", "up", "identifier",
    )  # fmt: skip
    ordering = ("heartbeat_at", "id")  # what is silent first
    search_fields = ("host",)
    get_search_results = admin.ModelAdmin.get_search_results
    page_template = "admin/pages/worker.html"

    @admin.display(description="host and process", ordering="host")
    def process(self, worker: Worker) -> str:
        return str(worker)

    @admin.display(description="state")
    def state(self, worker: Worker) -> SafeString:
        return badge(attention.state_of(worker))

    @admin.display(description="stragglers", ordering="stragglers")
    def straggling(self, worker: Worker) -> str | SafeString:
        return badge(str(worker.stragglers), "bad") if worker.stragglers else "0"

    heartbeat = ago_column("last heartbeat", "heartbeat_at")
    up = ago_column("up for", "started_at")
    identifier = id_column("id")

    def page_context(self, request: HttpRequest, found: Worker) -> dict[str, Any]:
        now = timezone.now()
        runs = Run.objects.filter(worker=found, status=RunStatus.RUNNING).select_related(
            "session__owner", "worker"
        )
        page = list(runs.defer("input", "questions", "answers").order_by("last_event_at")[: _RUNS + 1])
        signs = attention.signs(page, now)
        return {
            "title": f"Worker {found}",
            "state": badge(attention.state_of(found)),
            "facts": [
                ("Host", found.host),
                ("Process", str(found.pid)),
                ("Version", found.version),
                ("Started", clock(found.started_at)),
                ("Last heartbeat", ago(found.heartbeat_at, now)),
                ("Runs in hand", str(found.active_runs)),
                ("Stragglers", str(found.stragglers)),
                ("Id", str(found.id)),
            ],
            "runs": [_line(run, signs[run.id], now) for run in page[:_RUNS]],
            "runs_cut": len(page) > _RUNS,
        }


def _line(run: Run, signs: list[str], now: datetime) -> dict[str, Any]:
    return {
        "run": run,
        "name": short(run.id),
        "age": ago(run.created_at, now),
        "last": ago(run.last_event_at, now),
        "signs": [badge(sign) for sign in signs],
    }
