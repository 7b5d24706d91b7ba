"""Who sees and does what at the console, and that nobody changes history by hand."""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from runs.errors import HistoryIsFinal
from runs.models import AuditEntry, Cancellation, Run, Session, Worker
from tests.admin.conftest import logged_in
from tests.admin.rows import a_call

# Each line is an address of the console: its name, whose key it takes, the method, and what an operator with
# all permissions gets. Everybody else is sent to the login, but staff without permissions gets a 403.
TABLE = [
    (f"{model}_{page}", model if page != "changelist" else None, method, expected)
    for model in ("run", "session", "worker", "cancellation", "auditentry")
    for page, method, expected in (
        ("changelist", "GET", 200),
        ("change", "GET", 200),
        ("change", "POST", 403),
        ("add", "GET", 403),
        ("add", "POST", 403),
        ("history", "GET", 200),
        ("delete", "GET", 200 if model in ("run", "session") else 403),
        ("delete", "POST", {"run": 403, "session": 200}.get(model, 403)),
    )
] + [
    ("run_report", None, "GET", 302),
    ("run_live", "run", "GET", 200),
    ("run_live", "run", "POST", 403),
    ("run_checkpoint", "run", "GET", 200),
    ("run_checkpoint", "run", "POST", 403),
]
TABLE = [(name, None if name.endswith(("_add", "_changelist")) else key, *rest) for name, key, *rest in TABLE]


@pytest.mark.parametrize("line", TABLE, ids=[f"{method} {name}" for name, _, method, _ in TABLE])
def test_the_console_is_for_operators_alone(line, keys, alice, bob, olivia, staff):
    name, key, method, expected = line
    url = reverse(f"admin:runs_{name}", args=[keys[key]] if key else [])
    before = Run.objects.values().get()
    for somebody in (Client(), logged_in(alice), logged_in(bob)):
        answer = somebody.generic(method, url)
        assert (answer.status_code, answer.url.split("?")[0]) == (302, reverse("admin:login"))
    assert staff().generic(method, url).status_code == 403
    assert logged_in(olivia).generic(method, url).status_code == expected
    assert Run.objects.values().get() == before


def test_every_address_of_the_console_is_in_the_table():
    names = set()
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label == "runs":
            names |= {pattern.name for pattern in model_admin.get_urls() if pattern.name}
    assert names == {f"runs_{name}" for name, *_ in TABLE}


@pytest.mark.parametrize("model", ["run", "session", "worker", "cancellation", "auditentry"])
def test_each_permission_to_view_opens_its_own_pages_and_no_others(staff, keys, model):
    browser = staff(f"view_{model}")
    opened = [
        name
        for name, key in keys.items()
        if browser.get(reverse(f"admin:runs_{name}_changelist")).status_code == 200
        and browser.get(reverse(f"admin:runs_{name}_change", args=[key])).status_code == 200
    ]
    assert opened == [model]
    page = browser.get(reverse(f"admin:runs_{model}_changelist")).content.decode()
    assert [name for name in keys if f'"{reverse(f"admin:runs_{name}_changelist")}"' in page] == [model]


# History


def everything() -> dict:
    models = (Run, Session, Worker, Cancellation, AuditEntry)
    return {model: list(model.objects.values()) for model in models}


@pytest.mark.parametrize("role", ["superuser", "limited staff"])
def test_no_page_or_post_changes_what_happened(role, staff, olivia, keys, alice):
    a_call(Run.objects.get())
    every = [
        permission.codename
        for permission in Permission.objects.filter(content_type__app_label="runs")
        if permission.codename.startswith(("view_", "add_", "change_"))
    ]
    browser = logged_in(olivia) if role == "superuser" else staff(*every)
    before = everything()
    for name, key in keys.items():
        forged = {
            "status": "completed",
            "outcome": "cancelled",
            "reason": "forged",
            "actor": "nobody",
            "_save": "Save",
        }
        assert browser.post(reverse(f"admin:runs_{name}_add"), forged).status_code == 403
        assert browser.post(reverse(f"admin:runs_{name}_change", args=[key]), forged).status_code == 403
        page = browser.get(reverse(f"admin:runs_{name}_change", args=[key])).content.decode()
        assert not re.search(
            r'<(input|select|textarea)[^>]*name="(status|outcome|reason|actor|title|owner)"', page
        )
        if name != "session":
            assert (
                browser.post(reverse(f"admin:runs_{name}_delete", args=[key]), {"post": "yes"}).status_code
                == 403
            )
            listed = browser.get(reverse(f"admin:runs_{name}_changelist")).content.decode()
            assert "delete_selected" not in listed
            bulk = {
                "action": "delete_selected",
                "_selected_action": [str(key)],
                "post": "yes",
                "confirmed": "yes",
                "reason": "x",
            }
            browser.post(reverse(f"admin:runs_{name}_changelist"), bulk)
            # Bulk editing, if the list had it.
            forged_rows = {
                "form-TOTAL_FORMS": "1",
                "form-INITIAL_FORMS": "1",
                "form-0-id": str(key),
                "_save": "Save",
            }
            browser.post(reverse(f"admin:runs_{name}_changelist"), forged_rows | forged)
    after = everything()
    noted = {"read_chat"}
    after[AuditEntry] = [entry for entry in after[AuditEntry] if entry["action"] not in noted]
    assert after == before


def test_the_events_tool_calls_and_totals_have_no_pages_at_all():
    registered = {model._meta.model_name for model in admin.site._registry if model._meta.app_label == "runs"}
    assert registered == {"run", "session", "worker", "cancellation", "auditentry"}


def test_there_is_no_permission_to_change_history(db):
    codenames = Permission.objects.filter(content_type__app_label="runs").values_list("codename", flat=True)
    changing = {name for name in codenames if name.startswith(("add_", "change_", "delete_"))}
    assert changing == {"delete_session"}


def test_an_audit_entry_is_written_once(db):
    entry = AuditEntry.objects.create(actor="olivia", action="cancel", target="x")
    entry.reason = "another"
    for change in (
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.update(reason="another"),
        lambda: AuditEntry.objects.bulk_update([entry], ["reason"]),
    ):
        with pytest.raises(HistoryIsFinal):
            change()
    assert AuditEntry.objects.values_list("reason", flat=True).get() == ""


# Logins


def test_logins_to_the_admin_are_throttled(transactional_db, olivia, settings):
    settings.AXES_FAILURE_LIMIT = 3
    browser = Client()
    login = reverse("admin:login")
    statuses = [
        browser.post(login, {"username": "olivia", "password": "guess"}).status_code for _ in range(4)
    ]
    assert statuses == [200, 200, 429, 429]
    right = browser.post(login, {"username": "olivia", "password": "olivia-password"})
    assert right.status_code == 429
    assert browser.get(reverse("admin:index")).status_code == 302
    elsewhere = Client(REMOTE_ADDR="192.0.2.7").post(
        login, {"username": "olivia", "password": "olivia-password"}
    )
    assert elsewhere.status_code == 429  # the account itself waits, wherever one comes from
