"""Commands to selected runs: the page that asks for a reason and says what will happen, and the report."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from runs.admin.actions.commands import COMMANDS, LIMIT, Command, look, perform
from runs.admin.base import ConsoleAdmin, actor_of, allowed
from runs.admin.formatting import count
from runs.foundation.limits import REASON_LIMIT
from runs.models import Run
from runs.operators import may_read

# The key of the session under which the report of the last command is kept for its page.
REPORT = "runs_report"

Act = Callable[[ConsoleAdmin, HttpRequest, QuerySet[Run]], HttpResponse | None]


class ReasonForm(forms.Form):
    """The reason for a command. The audit entry keeps it, and the users of the runs that it ends see it."""

    reason = forms.CharField(
        max_length=REASON_LIMIT,
        widget=forms.Textarea(attrs={"rows": 2, "cols": 80, "autofocus": True}),
        error_messages={"required": "Say why this has to be done."},
    )


def actions_for(request: HttpRequest) -> dict[str, tuple[Act, str, str]]:
    """The commands that this operator may give, as actions of a list."""
    return {
        name: (partial(_confirm_or_perform, command), name, f"{command.label} selected runs")
        for name, command in COMMANDS.items()
        if allowed(request, command.permission)
    }


def buttons_for(request: HttpRequest, run: Run) -> list[Command]:
    """The commands that this operator may give and that could change something about this run."""
    return [
        command
        for command in COMMANDS.values()
        if allowed(request, command.permission) and command.applies(run)
    ]


def _confirm_or_perform(
    command: Command, model_admin: ConsoleAdmin, request: HttpRequest, queryset: QuerySet[Run]
) -> HttpResponse | None:
    runs = _selected(request, queryset)
    if len(runs) > LIMIT:
        refusal = f"A command is given to at most {LIMIT} runs at once. Narrow the list with its filters."
        model_admin.message_user(request, refusal, messages.ERROR)
        return None
    if not runs:
        model_admin.message_user(request, "These runs are gone.", messages.WARNING)
        return None
    form = ReasonForm(request.POST if "confirmed" in request.POST else None)
    if form.is_bound and form.is_valid():
        report = perform(command, actor_of(request), runs, form.cleaned_data["reason"])
        return _show_report(model_admin, request, command, report)
    return model_admin.render(
        request,
        "admin/actions/confirm.html",
        title=f"{command.label} {count(len(runs), 'run')}",
        command=command,
        chosen=[
            (seen.run, command.foresee(seen), may_read(actor_of(request), seen.run.session.owner_id))
            for seen in look(runs)
        ],
        form=form,
        checkbox=ACTION_CHECKBOX_NAME,
    )


def _selected(request: HttpRequest, queryset: QuerySet[Run]) -> list[Run]:
    """The ticked runs. The list's filters do not count: a run may have changed since."""
    if request.POST.get("select_across") != "1":
        queryset = Run.objects.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
    return list(queryset.select_related("session__owner", "worker").order_by("created_at", "id")[: LIMIT + 1])


def _show_report(
    model_admin: ConsoleAdmin, request: HttpRequest, command: Command, report: list[dict[str, Any]]
) -> HttpResponse:
    if len(report) == 1:
        only = report[0]
        level = messages.SUCCESS if only["changed"] else messages.WARNING
        model_admin.message_user(request, f"{command.label}: {only['told']}", level)
        return redirect("admin:runs_run_change", only["run"])
    request.session[REPORT] = {"command": command.name, "runs": report}
    return redirect("admin:runs_run_report")


def report_of(request: HttpRequest) -> dict[str, Any] | None:
    """The last command to several runs: ``{"command", "total", "changed", "unchanged"}``."""
    kept = request.session.get(REPORT)
    if kept is None:
        return None
    return {
        "command": COMMANDS[kept["command"]],
        "total": len(kept["runs"]),
        "changed": [one for one in kept["runs"] if one["changed"]],
        "unchanged": [one for one in kept["runs"] if not one["changed"]],
    }
