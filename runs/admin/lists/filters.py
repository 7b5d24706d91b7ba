"""The filters of each list."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest

from runs import agents
from runs.admin.base import is_uuid
from runs.admin.lists import attention, paging
from runs.admin.lists.filter_kinds import Choice, Condition, Filter, Text, WithoutIndex, before, same, within
from runs.lifecycle import predicates
from runs.models import UNDECIDED, Run, Session, Worker
from runs.states import ACTIVE, CancelOutcome, CancelSource, Resolution, RunStatus, SessionStatus

TOKENS = (
    Coalesce(F("input_tokens"), 0)
    + Coalesce(F("output_tokens"), 0)
    + F("open_input_tokens")
    + F("open_output_tokens")
)

_WORKERS_LISTED = 30
# The runs of so many sessions of one owner are shown: of the latest ones.
_SESSIONS = 2_000


def _among(runs: Callable[[], QuerySet[Run]]) -> Condition:
    # By their keys: in the order of a list a database would rather look for the few through all there are.
    return lambda _: Q(id__in=runs().values("id"))


def _active(**condition: Any) -> Condition:
    return _among(lambda: Run.objects.filter(status__in=ACTIVE, **condition))


# Runs


class Status(Choice):
    title = "status"
    parameter_name = "status__exact"  # as Django would call it
    conditions = {
        "active": ("active", _active()),
        **{str(status): (str(status), same(status=status)) for status in RunStatus},
    }


def _of_unknown_effect(request: HttpRequest) -> Q:
    left_out = f"Only runs of the latest {attention.CALLS:,} tool calls of unknown effect are shown."
    calls = paging.latest(request, attention.latest_of_unknown_effect(), attention.CALLS, left_out)
    return Q(id__in=calls.values("run"))


class Attention(Choice):
    title = "attention"
    parameter_name = "attention"
    conditions = {
        "any": ("hanging", lambda _: attention.needed()),
        "stuck": ("stuck: no event or no worker", _among(predicates.stuck_runs)),
        "cancel_overdue": ("cancel overdue", _among(predicates.runs_with_overdue_cancel)),
        "worker_lost": ("worker lost", _among(attention.unattended)),
        "untaken": ("not taken by any worker", _among(predicates.unclaimed_runs)),
        "undecided": ("interrupted of late, undecided", _among(predicates.undecided_runs)),
        "long_queue": ("in a long queue", lambda _: attention.in_long_queue()),
        "effect_unknown": ("effect unknown", _of_unknown_effect),
    }


class Agent(WithoutIndex):
    """The configured agents, and the one in the address.

    Some agents have most of the rows and others hardly any. An index would help with neither.
    """

    title = "agent"
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = agents.names()
        asked = request.GET.get("agent")
        if asked and asked not in names and "\0" not in asked:
            names.append(asked)  # one that is not configured any more
        return [(name, name) for name in names]

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(agent=value)

    def has_output(self) -> bool:
        return True


class OfWorker(Filter):
    title = "worker"
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        workers = Worker.objects.order_by("host", "pid")[:_WORKERS_LISTED]
        return [("none", "none, though running")] + [(str(worker.id), str(worker)) for worker in workers]

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        if value == "none":
            return Q(worker=None, status=RunStatus.RUNNING)
        return Q(worker=value) if is_uuid(value) else None


class Owner(Text):
    title = "owner"
    parameter_name = "owner"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        sessions = Session.objects.filter(owner__username=value).order_by("-updated_at", "-id")
        left_out = (
            f"Only runs of the latest {_SESSIONS:,} sessions of this owner are shown. The list of sessions "
            "leads to those of older ones."
        )
        return Q(session__in=paging.latest(request, sessions, _SESSIONS, left_out).values("id"))


class OfSession(Text):
    title = "session"
    parameter_name = "session"
    hint = "session id"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(session=value) if is_uuid(value) else None


class Age(Choice):
    title = "age"
    parameter_name = "age"
    conditions = {
        "hour": ("at most an hour", within("created_at", hours=1)),
        "day": ("at most a day", within("created_at", days=1)),
        "week": ("at most a week", within("created_at", days=7)),
        "older": ("over a week", before("created_at", days=7)),
    }


def _event_within(**duration: float) -> Condition:
    # The last event of what has ended is its end, which has an index.
    since = Now() - timedelta(**duration)
    late = Q(status__in=ACTIVE, last_event_at__gte=since) | Q(finished_at__gte=since)
    return _among(lambda: Run.objects.filter(late))


def _silent_for(**duration: float) -> Condition:
    return _active(last_event_at__lt=Now() - timedelta(**duration))


class LastEvent(Choice):
    title = "last event"
    parameter_name = "last_event"
    conditions = {
        "minute": ("in the last minute", _event_within(minutes=1)),
        "hour": ("in the last hour", _event_within(hours=1)),
        "silent_minute": ("active, over a minute ago", _silent_for(minutes=1)),
        "silent_hour": ("active, over an hour ago", _silent_for(hours=1)),
    }


class Decision(WithoutIndex, Choice):
    title = "decision"
    parameter_name = "decision"
    conditions = {
        "none": ("interrupted, undecided", lambda _: UNDECIDED),
        **{str(one): (str(one), same(resolution=one)) for one in Resolution},
    }


class Tokens(WithoutIndex, Choice):
    title = "tokens"
    parameter_name = "tokens"
    conditions = {
        "unknown": ("unknown", same(input_tokens=None, output_tokens=None)),
        "1000": ("1,000 and more", same(tokens__gte=1_000)),
        "10000": ("10,000 and more", same(tokens__gte=10_000)),
        "100000": ("100,000 and more", same(tokens__gte=100_000)),
    }


# Sessions


class SessionOwner(Text):
    title = "owner"
    parameter_name = "owner"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(owner__username=value)


def _with_run(condition: Q) -> Condition:
    def found(request: HttpRequest) -> Q:
        newest = Run.objects.filter(condition).order_by("-created_at", "-id")
        left_out = f"Only sessions of the latest {paging.COUNTED:,} such runs are shown."
        return Q(id__in=paging.latest(request, newest, paging.COUNTED, left_out).values("session"))

    return found


class SessionState(Choice):
    title = "status"
    parameter_name = "status"
    conditions = {
        str(SessionStatus.RUNNING): ("running", _with_run(Q(status=RunStatus.RUNNING))),
        str(SessionStatus.WAITING): ("waiting", _with_run(Q(status=RunStatus.WAITING))),
        str(SessionStatus.QUEUED): ("with a queue", _with_run(Q(status=RunStatus.QUEUED))),
        str(SessionStatus.INTERRUPTED): ("interrupted", _with_run(UNDECIDED)),
    }


# Cancellations and audit entries


class Outcome(WithoutIndex, Choice):
    title = "outcome"
    parameter_name = "outcome"
    indexed = ("pending",)
    conditions = {
        "pending": ("pending", same(settled_at=None)),
        **{str(one): (one.replace("_", " "), same(outcome=one)) for one in CancelOutcome},
    }


class Source(WithoutIndex, Choice):
    title = "source"
    parameter_name = "source"
    conditions = {str(one): (str(one), same(source=one)) for one in CancelSource}


class Escalated(WithoutIndex, Choice):
    title = "given up"
    parameter_name = "escalated"
    conditions = {"yes": ("something was given up on", same(escalated=True))}


class Actor(WithoutIndex, Text):
    title = "actor"
    parameter_name = "actor"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(actor=value)


class Action(WithoutIndex, Choice):
    title = "action"
    parameter_name = "action_name"
    conditions = {
        name: (name.replace("_", " "), same(action=name))
        for name in (
            "cancel",
            "force_cancel",
            "reconcile",
            "resume",
            "dismiss",
            "delete_session",
            "delete_user",
            "read_chat",
        )
    }
