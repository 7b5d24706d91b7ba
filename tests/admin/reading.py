"""What somebody reads on the pages of the console."""

import re
from typing import Any
from urllib.parse import urlencode

from django.test import Client
from django.urls import reverse

from runs.models import Run


def words_of(response: Any) -> str:
    """What somebody reads on the page, without the site's frame."""
    assert response.status_code == 200, (response.status_code, response.headers)
    content = response.content.decode().split('id="content-start"')[-1]
    return " ".join(re.sub(r"<[^>]*>", " ", content).split())


def runs_listed(browser: Client, **query: Any) -> list[str]:
    """The ids of the runs on a page of the list, in its order."""
    response = browser.get(f"{reverse('admin:runs_run_changelist')}?{urlencode(query)}")
    assert response.status_code == 200, (response.status_code, response.headers)
    return re.findall(
        r'field-identifier"><a href="/admin/runs/run/([0-9a-f-]{36})/', response.content.decode()
    )


def page(browser: Client, name: str, key: Any, **query: Any) -> Any:
    return browser.get(f"{reverse(f'admin:runs_{name}_change', args=[key])}?{urlencode(query)}")


def at(run: Run | str, **fields: Any) -> None:
    """Say when things happened to a run."""
    Run.objects.filter(id=getattr(run, "id", run)).update(**fields)
