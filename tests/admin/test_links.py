"""No page of the console links to one that its reader may not open; and all of them say where one is."""

import re

import pytest
from django.urls import reverse

MODELS = ("run", "session", "worker", "cancellation", "auditentry")


@pytest.mark.parametrize("also", [(), ("cancel_run", "force_cancel_run", "delete_session", "read_chats")])
@pytest.mark.parametrize("model", MODELS)
def test_every_link_leads_to_what_its_reader_may_open(staff, keys, model, also):
    browser = staff(f"view_{model}", *also)
    pages = [
        reverse("admin:index"),
        reverse(f"admin:runs_{model}_changelist"),
        reverse(f"admin:runs_{model}_change", args=[keys[model]]),
    ]
    if model == "run":
        pages += [reverse(f"admin:runs_run_{name}", args=[keys[model]]) for name in ("live", "delete")]
    if "delete_session" in also:
        pages.append(reverse("admin:runs_session_delete", args=[keys["session"]]))
    followed = 0
    for page in pages:
        content = browser.get(page).content.decode()
        for link in set(re.findall(r'href="(/admin/[^"#]*)', content)) - {reverse("admin:logout")}:
            answer = browser.get(link.replace("&amp;", "&"))
            assert answer.status_code == 200, f"{page} links to {link}"
            followed += 1
    assert followed > 3


def test_names_without_a_link_are_shown_as_text(staff, keys):
    browser = staff("view_run")
    for page in (
        reverse("admin:runs_run_changelist"),
        reverse("admin:runs_run_change", args=[keys["run"]]),
    ):
        content = browser.get(page).content.decode()
        assert str(keys["session"])[:8] in content
        assert ":1<" in content, "the process of the worker"


def test_an_operator_who_may_not_see_the_list_is_led_to_the_front_page_after_deleting(staff, keys):
    browser = staff("delete_session")
    delete = reverse("admin:runs_session_delete", args=[keys["session"]])
    answer = browser.post(delete, {"confirmed": "yes", "reason": "asked to"})
    assert (answer.status_code, answer.url) == (302, reverse("admin:index"))


@pytest.mark.parametrize("page", ["index", "runs_run_changelist", "login"])
def test_the_console_shows_the_name_of_the_product(console, client, page):
    browser = client if page == "login" else console
    content = browser.get(reverse(f"admin:{page}")).content.decode()
    assert re.search(r"<title>[^<]*Turnkeeper", content)
    assert "Django" not in re.sub(r"<[^>]*>", "", content)
