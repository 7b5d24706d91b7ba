"""Every page of the admin: how long it takes, with how many queries, how large it is, and how much memory."""

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field

# Words that are in many titles and inputs, and in none.
SEARCHES = ("matter", "nowhere to be found")


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


def measure(user=None, *, choices: int = 2, with_memory: bool = True) -> list[Page]:
    """Open all pages as somebody who may see everything; of each filter so many choices that do filter."""
    from django.contrib.auth import get_user_model
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client()
    client.force_login(user or get_user_model().objects.create_superuser("benchmark"))
    measured = []
    for page in addresses(client, choices):
        with CaptureQueriesContext(connection) as queries:
            begun = time.perf_counter()
            answer = client.get(page.address)
            page.size = len(answer.content)
            page.seconds = time.perf_counter() - begun
        page.status = answer.status_code
        page.queries = [query["sql"] for query in queries.captured_queries]
        if with_memory:
            tracemalloc.start()
            client.get(page.address)
            page.memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        measured.append(page)
    return measured


def addresses(client, choices: int) -> Iterator[Page]:
    """The front page; of each model the list, filtered and searched, the first object, and its deletion."""
    from django.contrib import admin
    from django.urls import reverse

    yield Page("dashboard", reverse("admin:index"))
    yield Page("dashboard, the part that is updated", reverse("dashboard"))
    for model, its in sorted(admin.site._registry.items(), key=lambda item: item[0]._meta.label):
        if model._meta.app_label != "runs":
            continue
        meta = model._meta
        place = f"admin:{meta.app_label}_{meta.model_name}"
        listed = reverse(f"{place}_changelist")
        yield Page(f"{meta.verbose_name_plural}", listed)
        answer = client.get(listed)
        shown = answer.context["cl"]
        for spec in shown.filter_specs:
            # A filter to write into offers nothing to follow.
            offered = [
                one for one in spec.choices(shown) if not one.get("selected") and "query_string" in one
            ]
            for choice in offered[:choices]:
                yield Page(
                    f"{meta.verbose_name_plural}, {spec.title}: {choice['display']}",
                    listed + choice["query_string"],
                )
        for words in SEARCHES if its.search_fields else ():
            yield Page(f"{meta.verbose_name_plural}, search {words!r}", f"{listed}?q={words}")
        if shown.result_list:
            one = shown.result_list[0]
            yield Page(f"{meta.verbose_name}", reverse(f"{place}_change", args=[one.pk]))
            if its.has_delete_permission(answer.wsgi_request, one):
                yield Page(f"{meta.verbose_name}, delete", reverse(f"{place}_delete", args=[one.pk]))


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
