"""The kinds of filters that lists have. None of them lists a table that grows.

Most conditions have an index. The others are ``WithoutIndex``, and stand last in a list's filters: they look
at what the filters before them have left, as far as ``runs.admin.lists.paging`` says.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, TypeAlias

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.dateparse import parse_date

from runs.admin.dashboard import queries
from runs.admin.lists import paging

# What a list is narrowed by, made from its request.
Condition: TypeAlias = Callable[[HttpRequest], Q]


class Filter(admin.SimpleListFilter):
    """A filter by one condition, made from its value in the address."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = (self.value() or "").strip()
        if not value:
            return queryset
        condition = None if "\0" in value else self.condition(request, value)
        return queryset.none() if condition is None else queryset.filter(condition)

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        """The condition for this value. None when no row can meet it."""
        raise NotImplementedError


class Choice(Filter):
    """A choice of one named condition."""

    conditions: dict[str, tuple[str, Condition]]  # by the value in the address, each with its label

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label) for value, (label, _) in self.conditions.items()]

    def condition(self, request: HttpRequest, value: str) -> Q | None:
        chosen = self.conditions.get(value)
        return chosen[1](request) if chosen else Q()


class WithoutIndex(Filter):
    """A filter whose conditions have no index, except those of the values in ``indexed``."""

    indexed: Collection[str] = ()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() and self.value() not in self.indexed:
            queryset = paging.among_first(request, queryset)
        return super().queryset(request, queryset)


class Text(Filter):
    """A text field, for where there are too many values to list."""

    template = "admin/lists/text_filter.html"
    hint = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return []

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """The field itself, and the other parameters of the address."""
        others = [item for item in changelist.params.items() if item[0] not in (self.parameter_name, "p")]
        yield {
            "name": self.parameter_name,
            "value": self.value() or "",
            "hint": self.hint,
            "others": others,
            "without": changelist.get_query_string(remove=[self.parameter_name or "", "p"]),
        }


def same(**value: Any) -> Condition:
    return lambda _: Q(**value)


def within(field: str, **duration: float) -> Condition:
    return lambda _: Q(**{f"{field}__gte": Now() - timedelta(**duration)})


def until(field: str) -> type[Text]:
    """A filter by the latest day of ``field``. It makes all of a long list reachable."""

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


def before(field: str, **duration: float) -> Condition:
    return lambda _: Q(**{f"{field}__lt": Now() - timedelta(**duration)})


def since(field: str) -> type[Choice]:
    """A filter by how long ago ``field`` was."""

    class Since(Choice):
        title = "time"
        parameter_name = "since"
        conditions = {
            "hour": ("in the last hour", within(field, hours=1)),
            "day": ("in the last day", within(field, days=1)),
            "week": ("in the last week", within(field, days=7)),
        }

    return Since
