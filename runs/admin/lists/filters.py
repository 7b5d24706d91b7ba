"""The filters of the lists. None of them lists a table that grows.

To most conditions an index leads. The others are ``Sought``, and stand last in a list's filters: they look
through what the filters before them have left, as far as ``runs.admin.lists.paging`` says.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest
from django.utils.dateparse import parse_date

from runs import agents
from runs.admin.dashboard import queries
from runs.admin.lists import attention, paging
from runs.models import Run, Session, Worker
from runs.states import ACTIVE, CancelOutcome, CancelSource, Resolution, RunStatus, SessionStatus

TOKENS = (
    Coalesce(F("input_tokens"), 0)
    + Coalesce(F("output_tokens"), 0)
    + F("open_input_tokens")
    + F("open_output_tokens")
)

# What a list is narrowed by, as its request asks for it.
Condition: TypeAlias = Callable[[HttpRequest], Q]

_WORKERS_LISTED = 30
# Sessions of one owner, the latest ones, whose runs are shown.
_SESSIONS = 2_000


class Choice(admin.SimpleListFilter):
    """Some named conditions, of which one may hold."""

    conditions: dict[str, tuple[str, Condition]]  # by the value in the address, each with its label

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.conditions.get(self.value() or "")
        return queryset.filter(chosen[1](request)) if chosen else queryset


class Sought(admin.SimpleListFilter):
    """To whose conditions no index leads, but for those of the values in ``indexed``."""

    indexed: Collection[str] = ()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() and self.value() not in self.indexed:
            queryset = paging.among_first(request, queryset)
        found = super().queryset(request, queryset)
        return queryset if found is None else found


class Text(admin.SimpleListFilter):
    """A field to write into, where there are too many values to list."""

    template = "admin/lists/text_filter.html"
    hint = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """One: the field itself, and what else the address says."""
        others = [item for item in changelist.params.items() if item[0] not in (self.parameter_name, "p")]
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "hint": self.hint,
            "others": others,
            "without": changelist.get_query_string(remove=[self.parameter_name or "", "p"]),
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = (self.value() or "").strip()
        if not value:
            return queryset
        condition = None if "\0" in value else self.condition(request, value)
        return queryset.none() if condition is None else queryset.filter(condition)

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        """What the text asks for; None when nothing can be it."""
        raise NotImplementedError


def _same(**value: Any) -> Condition:
    return lambda _: Q(**value)


def _within(field: str, **duration: float) -> Condition:
    return lambda _: Q(**{f"{field}__gte": Now() - timedelta(**duration)})


def until(field: str) -> type[Text]:
    """A filter by the latest day that ``field`` may be on: what makes all of a long list reachable."""

    class Until(Text):
        title = "latest day"
        parameter_name = "until"
        hint = "year-month-day"

        def condition(self, request: HttpRequest, value: str) -> Q | None:
            try:
                day = parse_date(value)
                end = queries.bounds(day)[1] if day else None
            except (ValueError, OverflowError):  # no day of any month, or the last one there is
                end = None
            return Q(**{f"{field}__lt": end}) if end else None

    return Until


def _before(field: str, **duration: float) -> Condition:
    return lambda _: Q(**{f"{field}__lt": Now() - timedelta(**duration)})


def _active(**condition: Any) -> Q:
    # By their keys: in the order of a list a database would rather look for the few through all there are.
    return Q(id__in=Run.objects.filter(status__in=ACTIVE, **condition).values("id"))


# Runs


class Status(Choice):
    title = "status"
    parameter_name = "status__exact"  # as Django would call it
    conditions = {
        "active": ("active", lambda _: _active()),
        **{str(status): (str(status), _same(status=status)) for status in RunStatus},
    }


def _of_unknown_effect(request: HttpRequest) -> Q:
    told = f"Only runs of the latest {attention.CALLS:,} tool calls of unknown effect are shown."
    calls = paging.latest(request, attention.latest_of_unknown_effect(), attention.CALLS, told)
    return Q(id__in=calls.values("run"))


class Attention(Choice):
    title = "attention"
    parameter_name = "attention"
    conditions = {
        "any": ("hanging", lambda _: attention.hanging()),
        "stuck": ("stuck: no event or no worker", lambda _: attention.stuck()),
        "cancel_overdue": ("cancel overdue", lambda _: attention.overdue()),
        "worker_lost": ("worker lost", lambda _: attention.unattended()),
        "untaken": ("not taken by any worker", lambda _: attention.untaken()),
        "undecided": ("interrupted of late, undecided", lambda _: attention.undecided()),
        "long_queue": ("in a long queue", lambda _: attention.in_long_queue()),
        "effect_unknown": ("effect unknown", _of_unknown_effect),
    }


class OfAgent(admin.SimpleListFilter):
    """The agents that are configured, and the one that is asked for."""

    title = "agent"
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = agents.names()
        asked = request.GET.get("agent")
        if asked and asked not in names and "\0" not in asked:
            names.append(asked)  # one that is not configured any more
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        return queryset.none() if "\0" in value else queryset.filter(agent=value)

    def has_output(self) -> bool:
        return True


class Agent(Sought, OfAgent):
    """Some agents have most of the rows and some hardly any: an index would help with neither."""


class OfWorker(admin.SimpleListFilter):
    title = "worker"
    parameter_name = "worker"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        workers = Worker.objects.order_by("host", "pid")[:_WORKERS_LISTED]
        return [("none", "none, though running")] + [(str(worker.id), str(worker)) for worker in workers]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if not value:
            return queryset
        if value == "none":
            return queryset.filter(worker=None, status=RunStatus.RUNNING)
        identifier = _uuid(value)
        return queryset.filter(worker=identifier) if identifier else queryset.none()


class Owner(Text):
    title = "owner"
    parameter_name = "owner"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        sessions = Session.objects.filter(owner__username=value).order_by("-updated_at", "-id")
        told = (
            f"Only runs of the latest {_SESSIONS:,} sessions of this owner are shown. The list of sessions "
            "leads to those of older ones."
        )
        return Q(session__in=paging.latest(request, sessions, _SESSIONS, told).values("id"))


class OfSession(Text):
    title = "session"
    parameter_name = "session"
    hint = "session id"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        identifier = _uuid(value)
        return Q(session=identifier) if identifier else None


class Age(Choice):
    title = "age"
    parameter_name = "age"
    conditions = {
        "hour": ("at most an hour", _within("created_at", hours=1)),
        "day": ("at most a day", _within("created_at", days=1)),
        "week": ("at most a week", _within("created_at", days=7)),
        "older": ("over a week", _before("created_at", days=7)),
    }


def _event_within(**duration: float) -> Condition:
    # The last event of what has ended is its end, which has an index.
    since = Now() - timedelta(**duration)
    late = Q(status__in=ACTIVE, last_event_at__gte=since) | Q(finished_at__gte=since)
    return lambda _: Q(id__in=Run.objects.filter(late).values("id"))


def _silent_for(**duration: float) -> Condition:
    return lambda _: _active(last_event_at__lt=Now() - timedelta(**duration))


class LastEvent(Choice):
    title = "last event"
    parameter_name = "last_event"
    conditions = {
        "minute": ("in the last minute", _event_within(minutes=1)),
        "hour": ("in the last hour", _event_within(hours=1)),
        "silent_minute": ("active, over a minute ago", _silent_for(minutes=1)),
        "silent_hour": ("active, over an hour ago", _silent_for(hours=1)),
    }


class Decision(Sought, Choice):
    title = "decision"
    parameter_name = "decision"
    conditions = {
        "none": ("interrupted, undecided", _same(status=RunStatus.INTERRUPTED, resolution=None)),
        **{str(one): (str(one), _same(resolution=one)) for one in Resolution},
    }


class Tokens(Sought, Choice):
    title = "tokens"
    parameter_name = "tokens"
    conditions = {
        "unknown": ("unknown", _same(input_tokens=None, output_tokens=None)),
        "1000": ("1,000 and more", _same(tokens__gte=1_000)),
        "10000": ("10,000 and more", _same(tokens__gte=10_000)),
        "100000": ("100,000 and more", _same(tokens__gte=100_000)),
    }


# Sessions


class SessionOwner(Text):
    title = "owner"
    parameter_name = "owner"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(owner__username=value)


def _with_run(**condition: Any) -> Condition:
    def found(request: HttpRequest) -> Q:
        newest = Run.objects.filter(**condition).order_by("-created_at", "-id")
        told = f"Only sessions of the latest {paging.COUNTED:,} such runs are shown."
        return Q(id__in=paging.latest(request, newest, paging.COUNTED, told).values("session"))

    return found


class SessionState(Choice):
    title = "status"
    parameter_name = "status"
    conditions = {
        str(SessionStatus.RUNNING): ("running", _with_run(status=RunStatus.RUNNING)),
        str(SessionStatus.WAITING): ("waiting", _with_run(status=RunStatus.WAITING)),
        str(SessionStatus.QUEUED): ("with a queue", _with_run(status=RunStatus.QUEUED)),
        str(SessionStatus.INTERRUPTED): (
            "interrupted",
            _with_run(status=RunStatus.INTERRUPTED, resolution__isnull=True),
        ),
    }


# Cancellations and audit entries


class Outcome(Sought, Choice):
    title = "outcome"
    parameter_name = "outcome"
    indexed = ("pending",)
    conditions = {
        "pending": ("pending", _same(settled_at=None)),
        **{str(one): (one.replace("_", " "), _same(outcome=one)) for one in CancelOutcome},
    }


class Source(Sought, Choice):
    title = "source"
    parameter_name = "source"
    conditions = {str(one): (str(one), _same(source=one)) for one in CancelSource}


class Escalated(Sought, Choice):
    title = "given up"
    parameter_name = "escalated"
    conditions = {"yes": ("something was given up on", _same(escalated=True))}


class Actor(Sought, Text):
    title = "actor"
    parameter_name = "actor"
    hint = "user name"

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        return Q(actor=value)


class Action(Sought, Choice):
    title = "action"
    parameter_name = "action_name"
    conditions = {
        name: (name.replace("_", " "), _same(action=name))
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


def since(field: str) -> type[Choice]:
    """A filter by how long ago ``field`` was."""

    class Since(Choice):
        title = "time"
        parameter_name = "since"
        conditions = {
            "hour": ("in the last hour", _within(field, hours=1)),
            "day": ("in the last day", _within(field, days=1)),
            "week": ("in the last week", _within(field, days=7)),
        }

    return Since


# What is searched for


def beginning(*fields: str, text: str, of: Callable[[UUID], Any] = lambda first: first) -> Q | None:
    """That one of these ids begins with ``text``; None when it is no beginning of an id.

    ``of`` makes of an id what the fields hold.
    """
    digits = text.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    first, last = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    condition = Q()
    for field in fields:
        condition |= Q(**{f"{field}__gte": of(first), f"{field}__lte": of(last)})
    return condition


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
