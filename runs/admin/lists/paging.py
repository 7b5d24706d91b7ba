"""Lists over tables of any size: no page reads more rows than a fixed number, however many there are.

Each list has an order of its own, for which there is an index. In that order the keys of the first COUNTED
rows are read: they are what is counted and paged through. Another order, for which there is no index, puts
just these in order. What no index leads to is looked for among the first LOOKED_THROUGH rows. The page says
so, and whoever looks for what lies behind narrows the list.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Page, Paginator
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest

from runs.admin.lists import attention
from runs.models import Run

# Rows that are counted, and to which pages lead.
COUNTED = 10_000
# Rows among which is looked for what has no index.
LOOKED_THROUGH = 100_000
# Hanging runs that are put first, those of them that the list is of.
_HANGING = 1_000
# Where a request keeps what its list does not show of what it was asked for.
_LEFT_OUT = "console_left_out"

NO_INDEX = (
    "Some of what was asked for has no index: it was looked for among the latest. Choose an earlier latest "
    "day, or narrow the list otherwise, to look further back."
)

Row = TypeVar("Row", bound=Model)


def among_first(request: HttpRequest, rows: QuerySet[Row]) -> QuerySet[Row]:
    """The first LOOKED_THROUGH of these rows in their order, whose first field has an index.

    A bound of that field says where they end, so that a database stops there whatever else is asked for.
    """
    (order, *_) = rows.query.order_by
    field = str(order).removeprefix("-")
    behind = list(
        rows.select_related(None).values_list(field, flat=True)[LOOKED_THROUGH : LOOKED_THROUGH + 1]
    )
    if not behind:
        return rows
    leave_out(request, NO_INDEX)
    return rows.filter(**{f"{field}__{'gte' if str(order).startswith('-') else 'lte'}": behind[0]})


def latest(request: HttpRequest, rows: QuerySet[Row], bound: int, left_out: str) -> QuerySet[Row]:
    """The first ``bound`` of these rows in their order; if there are more, the page says what is left out."""
    if rows.values("pk")[bound : bound + 1]:
        leave_out(request, left_out)
    return rows[:bound]


def leave_out(request: HttpRequest, sentence: str) -> None:
    """Note what the list of this request lacks of what it was asked for."""
    told = left_out_of(request)
    if sentence not in told:
        setattr(request, _LEFT_OUT, [*told, sentence])


def left_out_of(request: HttpRequest) -> list[str]:
    """What was noted so far, a sentence each."""
    return list(getattr(request, _LEFT_OUT, ()))


class BoundedPaginator(Paginator):
    """Pages of the keys of the first COUNTED rows."""

    object_list: QuerySet[Any]

    @cached_property
    def keys(self) -> list[Any]:
        """All that there are to page through."""
        return self._found[:COUNTED]

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def is_bounded(self) -> bool:
        """There are more than are counted."""
        return len(self._found) > COUNTED

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        return Page(self.keys[start : start + self.per_page], number, self)

    @cached_property
    def _found(self) -> list[Any]:
        return list(_keys(self.object_list)[: COUNTED + 1])


class HangingFirstPaginator(BoundedPaginator):
    """Pages of runs: those that hang, the longest silent first, then all others in their order.

    What hangs depends on the time of day, which no index knows. But only what is active can hang, and that
    is few: it is looked up by itself, and not in the list, which may be long.
    """

    @cached_property
    def keys(self) -> list[Any]:
        hanging_runs = Run.objects.filter(attention.hanging()).order_by("last_event_at", "id")
        hang = list(_keys(hanging_runs)[:_HANGING])
        # Looked at one by one: a database might rather go through all that one of the filters leads to.
        is_listed = Exists(self.object_list.order_by().filter(pk=OuterRef("pk")))
        listed = set(_keys(Run.objects.filter(is_listed, pk__in=hang))) if hang else set()
        first = [key for key in hang if key in listed]
        return [*first, *(key for key in super().keys if key not in listed)][:COUNTED]


def _keys(rows: QuerySet[Any]) -> QuerySet[Any, Any]:
    """The keys alone: a query that joins what the rows show may sort the whole table before it cuts."""
    return rows.select_related(None).values_list("pk", flat=True)


class BoundedChangeList(ChangeList):
    """Django's, which would count all rows, and put all of them in any order."""

    model_admin: Any  # a ConsoleAdmin
    has_own_order = True  # or the same backwards: no more rows are put in order than are shown
    left_out: Sequence[str] = ()  # what it does not show of what it was asked for, a sentence each

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        found = super().get_queryset(request, exclude_parameters)
        own, asked = self.model_admin.get_ordering(request), found.query.order_by
        self.has_own_order = _field(asked[0]) == _field(own[0])
        if self.has_own_order:
            return found
        first = found.order_by(*own).select_related(None).values("pk")[: COUNTED + 1]
        return self.root_queryset.filter(pk__in=first).order_by(*asked)

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        try:
            keys = self.paginator.page(self.page_num).object_list
        except InvalidPage:
            raise IncorrectLookupParameters from None
        rows = self.apply_select_related(self.root_queryset).order_by().in_bulk(keys)
        self.result_list = [rows[key] for key in keys if key in rows]
        self.model_admin.prepare(request, self.result_list)
        self.left_out = left_out_of(request)
        self.result_count = self.paginator.count
        self.multi_page = self.result_count > self.list_per_page
        self.full_result_count = None if self.query else self.result_count  # None offers to show all again
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True


def _field(order: Any) -> str:
    """The field of a term of an order; an expression is none."""
    return order.removeprefix("-") if isinstance(order, str) else ""
