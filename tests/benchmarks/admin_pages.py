"""Every page of the admin: how long it takes, with how many queries, how large it is, and how much memory."""

import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.db.models import Model, UUIDField
from django.test import Client
from django.utils.timezone import localdate

from runs.models import Session

# Words that are in all titles, in few, in none, and in the name of an owner.
SEARCHES = ("matter", "matter 4321", "nowhere to be found", "owner7")
# What is written into the filters, by their names: of an owner with much, with little, and of nobody.
WRITTEN = {
    "owner": lambda: ("owner0", "owner77", "nobody"),
    "actor": lambda: ("operator", "nobody"),
    "session": lambda: Session.objects.values_list("id", flat=True)[:1],
    "until": lambda: [localdate() - timedelta(days=200)],
}


@dataclass
class Page:
    """One page, as it was asked for first."""

    name: str
    address: str
    status: int = 0
    seconds: float = 0.0
    queries: list[str] = field(default_factory=list)
    size: int = 0  # bytes
    memory: int = 0  # bytes at the most while it was made a second time, over what there was before


def measure(user: User) -> list[Page]:
    """Open all pages as ``user``, who may see everything."""
    from django.test import Client

    client = Client()
    client.force_login(user)
    measured = []
    for page in addresses(client):
        look_at(client, page)
        tracemalloc.start()
        client.get(page.address)
        page.memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        measured.append(page)
        print(f"{len(measured)} pages", end="\r", file=sys.stderr, flush=True)
    return measured


def look_at(client: Client, page: Page) -> None:
    """Open one page, and note what it took."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        begun = time.perf_counter()
        answer = client.get(page.address)
        page.size = len(answer.content)
        page.seconds = time.perf_counter() - begun
    page.status = answer.status_code
    page.queries = [query["sql"] for query in queries.captured_queries]


def addresses(client: Client) -> Iterator[Page]:
    """The front page; of each model the list, filtered, put in order and searched, and one object's pages."""
    from django.contrib import admin
    from django.urls import reverse

    yield Page("dashboard", reverse("admin:index"))
    yield Page("dashboard, the part that is updated", reverse("dashboard"))
    for model, its in sorted(admin.site._registry.items(), key=lambda item: item[0]._meta.label):
        meta = model._meta
        name, place = meta.verbose_name_plural, f"admin:{meta.app_label}_{meta.model_name}"
        listed = reverse(f"{place}_changelist")
        yield Page(f"{name}", listed)
        answer = client.get(listed)
        shown = answer.context["cl"]
        is_ours = meta.app_label == "runs"  # of Django's and others' models, what one sees first is enough
        for spec in shown.filter_specs if is_ours else ():
            for told, query in _queries(spec, shown):
                yield Page(f"{name}, {spec.title}: {told}", listed + query)
        for column in range(len(shown.list_display)) if is_ours else ():
            if shown.get_ordering_field(shown.list_display[column]):
                for sign, told in (("", "upwards"), ("-", "downwards")):
                    query = shown.get_query_string({"o": f"{sign}{column}"})
                    yield Page(f"{name} by {shown.list_display[column]}, {told}", listed + query)
        for words in (*SEARCHES, *_known(model)) if its.search_fields else ():
            yield Page(f"{name}, search {words!r}", f"{listed}?{urlencode({'q': words})}")
        if shown.result_list:
            one = shown.result_list[0]
            yield Page(f"{meta.verbose_name}", reverse(f"{place}_change", args=[one.pk]))
            if its.has_delete_permission(answer.wsgi_request, one):
                yield Page(f"{meta.verbose_name}, delete", reverse(f"{place}_delete", args=[one.pk]))


def _queries(spec: Any, shown: Any) -> Iterator[tuple[str, str]]:
    """What a filter offers, and what somebody might write into one that is written into."""
    for choice in spec.choices(shown):
        if "query_string" not in choice:
            for value in WRITTEN.get(spec.parameter_name, lambda: ())():
                yield str(value), shown.get_query_string({spec.parameter_name: value})
        elif not choice.get("selected"):
            yield choice["display"], choice["query_string"]


def _known(model: type[Model]) -> Iterator[str]:
    """The beginning of an id that exists, for models that have such ids."""
    if isinstance(model._meta.pk, UUIDField) and (one := model._default_manager.first()):
        yield str(one.pk)[:12]


def table(pages: list[Page]) -> str:
    """One line a page."""
    rows = [("page", "status", "seconds", "queries", "kB", "memory MB")]
    rows += [
        (
            page.name,
            str(page.status),
            f"{page.seconds:.2f}",
            str(len(page.queries)),
            f"{page.size / 1000:.0f}",
            f"{page.memory / 1e6:.1f}",
        )
        for page in pages
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
