"""Lists over tables of any size: no page reads more rows than a fixed number, however many there are.

Each list has an order of its own, which has an index. In that order the keys of the first COUNTED rows are
read: they are counted and paged through. An order without an index sorts only these. A condition without an
index is checked for the first LOOKED_THROUGH rows. The page says so; to see other rows, one narrows the list.
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
# Rows for which a condition without an index is checked.
LOOKED_THROUGH = 100_000
# So many runs that need attention are looked at, and put first if they are in the list.
_ATTENTION = 1_000
# The attribute of a request that has what its list does not show.
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
    """Note what the list of this request does not show."""
    noted = left_out_of(request)
    if sentence not in noted:
        setattr(request, _LEFT_OUT, [*noted, sentence])


def left_out_of(request: HttpRequest) -> list[str]:
    """What was noted so far, a sentence each."""
    return list(getattr(request, _LEFT_OUT, ()))


class BoundedPaginator(Paginator):
    """Pages of the keys of the first COUNTED rows."""

    object_list: QuerySet[Any]

    @cached_property
    def keys(self) -> list[Any]:
        """The keys of all rows on all pages."""
        return self._found[:COUNTED]

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def is_bounded(self) -> bool:
        """Whether there are more rows than are counted."""
        return len(self._found) > COUNTED

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        return Page(self.keys[start : start + self.per_page], number, self)

    @cached_property
    def _found(self) -> list[Any]:
        return list(_keys(self.object_list)[: COUNTED + 1])


class AttentionFirstPaginator(BoundedPaginator):
    """Pages of runs: those that need attention, the longest silent first, then all others in their order.

    Attention depends on the time of day, so no index has it. But only active runs need it, and they are few:
    they are looked up by themselves, not in the list, which may be long.
    """

    @cached_property
    def keys(self) -> list[Any]:
        in_need = Run.objects.filter(attention.needed()).order_by("last_event_at", "id")
        first_keys = list(_keys(in_need)[:_ATTENTION])
        # Looked at one by one: a database might rather go through all that one of the filters leads to.
        is_listed = Exists(self.object_list.order_by().filter(pk=OuterRef("pk")))
        listed = set(_keys(Run.objects.filter(is_listed, pk__in=first_keys))) if first_keys else set()
        first = [key for key in first_keys if key in listed]
        return [*first, *(key for key in super().keys if key not in listed)][:COUNTED]


def _keys(rows: QuerySet[Any]) -> QuerySet[Any, Any]:
    """The keys alone: a query that joins what the rows show may sort the whole table before it cuts."""
    return rows.select_related(None).values_list("pk", flat=True)


class BoundedChangeList(ChangeList):
    """A change list that neither counts nor sorts all rows, as Django's would."""

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
