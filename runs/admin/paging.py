"""Lists over tables of any size: nothing is counted to its end, and nothing is read but the page."""

from functools import cached_property
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from runs.admin import hanging

# Rows that are counted, and to which pages lead: whoever looks for what lies behind them filters.
COUNTED = 10_000
# Hanging runs that are put first.
_HANGING_SHOWN = 200


class BoundedPaginator(Paginator):
    """Counts no further than COUNTED."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return int(self.object_list.order_by().values("pk")[:COUNTED].count())

    @property
    def is_bounded(self) -> bool:
        """There may be more than was counted."""
        return self.count == COUNTED

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        rows = read(self.object_list, (number - 1) * self.per_page, self.per_page)
        return Page(rows, number, self)


class HangingFirstPaginator(BoundedPaginator):
    """Pages of runs: those that hang, the longest silent first, then all others in their order.

    What hangs depends on the time of day, which no index knows. But only what is active can hang, and that
    is few: it is looked up by itself.
    """

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        first = self._hanging[start : start + self.per_page]
        others = self.object_list.exclude(pk__in=[run.pk for run in self._hanging])
        rest = read(others, max(start - len(self._hanging), 0), self.per_page - len(first))
        return Page([*first, *rest], number, self)

    @cached_property
    def _hanging(self) -> list[Any]:
        found = self.object_list.filter(hanging.hanging()).order_by("last_event_at", "id")
        return list(found[:_HANGING_SHOWN])


def read(rows: QuerySet[Any], start: int, count: int) -> list[Any]:
    """So many rows from ``start`` on. Their keys are read first: a query that joins what the rows show along
    with them may sort the whole table before it cuts."""
    if count <= 0:
        return []
    keys = list(rows.select_related(None).values_list("pk", flat=True)[start : start + count])
    found = {row.pk: row for row in rows.order_by().filter(pk__in=keys)}
    return [found[key] for key in keys if key in found]


class BoundedChangeList(ChangeList):
    """Django's, which would take a list that fits on one page past the paginator."""

    model_admin: Any  # a ConsoleAdmin

    def get_results(self, request: HttpRequest) -> None:
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        try:
            self.result_list = self.paginator.page(self.page_num).object_list
        except InvalidPage:
            raise IncorrectLookupParameters from None
        self.model_admin.prepare(request, self.result_list)
        self.result_count = self.paginator.count
        self.multi_page = self.result_count > self.list_per_page
        self.full_result_count = None if self.query else self.result_count  # None offers to show all again
        self.show_full_result_count = self.can_show_all = False
        self.show_admin_actions = True
