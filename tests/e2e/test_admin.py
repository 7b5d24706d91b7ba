"""What an operator sees and does in the admin, in a real browser against a real server."""

import re
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import PHONE, Visitor
from tests.e2e.test_chat import answers, held, send, stop_button

pytestmark = pytest.mark.browser


@pytest.fixture
def provider(server):
    return server.provider


@pytest.fixture(params=["desktop light", "phone dark"])
def operator(request: pytest.FixtureRequest, visit) -> Visitor:
    """An operator's browser: a large light screen, and a small dark one."""
    return visit(
        **(PHONE | {"color_scheme": "dark"} if "phone" in request.param else {"color_scheme": "light"})
    )


def start_a_turn(user: Visitor, provider, before: str = "As far as this") -> tuple[Page, str]:
    """A user's page with a turn that stops in mid-answer; and the gate that lets it go on."""
    message, gate = held(provider, before)
    page = user.new_page("/chat/")
    send(page, message)
    expect(answers(page)).to_have_text(before)
    return page, gate


def newest_run(operator: Visitor) -> Page:
    """The page of the newest run, by the way an operator takes."""
    page = operator.new_page("/admin/runs/run/?status__exact=running")
    page.locator("#result_list tbody tr").first.locator("th a").click()
    expect(page.locator("#run-live .state").first).to_have_text("running")
    return page


def give(page: Page, command: str, reason: str) -> None:
    """Press a command's button on the run's page, and confirm it."""
    page.get_by_role("button", name=command, exact=True).click()
    expect(page.get_by_role("columnheader", name="What will happen")).to_be_visible()
    page.get_by_label("Reason").fill(reason)
    page.locator(".submit-row").get_by_role("button", name=command, exact=True).click()


def test_a_runs_page_follows_the_run_to_its_end(operator, visit, provider):
    _, gate = start_a_turn(visit(), provider)
    page = newest_run(operator)
    log = page.locator("#log tbody tr").first
    log.locator("details summary, code").first.click()
    expect(page.get_by_role("button", name="Force-cancel")).to_be_visible()
    provider.open(gate)
    expect(page.locator("#run-live .state").first).to_have_text("completed")
    expect(page.get_by_role("button", name="Force-cancel")).to_have_count(0)
    expect(page.locator("#run-checkpoint")).to_contain_text("As far as this and the rest.")
    expect(page.locator(".bar-llm td").nth(3)).to_have_text("completed")
    expect(page.locator("#log")).to_contain_text("run.completed")


def test_a_run_is_force_cancelled_and_its_user_is_told_why(operator, visit, provider):
    chat, _ = start_a_turn(visit(), provider)
    page = newest_run(operator)
    give(page, "Force-cancel", "The <b>provider</b> hangs")
    expect(page.locator(".messagelist")).to_contain_text("It was ended without its worker.")
    expect(page.locator("#run-live .state").first).to_have_text("cancelled")
    told = chat.locator('[data-mark="stopped"]').last
    expect(told).to_have_text("Stopped by an operator: The <b>provider</b> hangs")
    expect(stop_button(chat)).to_be_hidden()
    live = chat.locator("#turns").inner_text()
    chat.reload()
    expect(told).to_have_text("Stopped by an operator: The <b>provider</b> hangs")
    assert chat.locator("#turns").inner_text() == live


def test_runs_are_cancelled_in_bulk_and_the_report_says_what_changed(operator, visit, provider):
    start_a_turn(visit(), provider)
    chat, _ = start_a_turn(visit(), provider)
    page = operator.new_page("/admin/runs/run/")
    for row in (0, 1):
        page.locator("#result_list tbody tr").nth(row).get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option(label="Cancel selected runs")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".told").first).to_contain_text("Its worker is told to stop.")
    page.locator(".submit-row input").click()
    expect(page.get_by_label("Reason")).to_be_focused()  # the browser asks for it
    page.get_by_label("Reason").fill("maintenance")
    page.locator(".submit-row input").click()
    expect(page.locator("#content")).to_contain_text("2 of 2 runs were changed.")
    expect(chat.locator('[data-mark="stopped"]').last).to_have_text("Stopped by an operator: maintenance")


def test_a_session_is_deleted_and_the_page_of_its_user_leaves(visit, provider):
    user = visit()
    user.expected = "404"  # its page may ask for the turn once more before it hears of the deletion
    chat, _ = start_a_turn(user, provider)
    page = visit().new_page(f"/admin/runs/session/{chat.url.split('/')[-2]}/change/")
    page.get_by_role("link", name="Delete", exact=True).click()
    page.get_by_label("Reason").fill("asked to")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator(".messagelist")).to_contain_text("Deleted 1 session.")
    expect(chat).not_to_have_url(re.compile(r"[0-9a-f]{8}-"))


def test_every_page_of_the_console_opens_without_an_error_and_fits_the_screen(operator, visit, provider):
    _, gate = start_a_turn(visit(), provider)
    page = newest_run(operator)
    run = page.url
    give(page, "Cancel", f"look {uuid4()}")
    expect(page.locator("#run-live .state").first).to_have_text("cancelled")
    session = page.locator(".head a").first.get_attribute("href")
    worker = page.locator(".columns a[href*=worker]").get_attribute("href")
    paths = [
        "/admin/",
        *(f"/admin/runs/{name}/" for name in ("run", "session", "worker", "cancellation", "auditentry")),
        "/admin/auth/user/",
        "/admin/auth/user/1/change/",
        "/admin/auth/user/1/delete/",
        "/admin/runs/run/?status__exact=failed&owner=nobody",
        run,
        run.replace("change", "delete"),
        session,
        worker,
    ]
    for path in paths:
        assert page.goto(path).status == 200, path
        width = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert width <= 0, f"{path} is {width} too wide"
        for box in page.locator("#action-toggle").all():
            box.check(trial=True)  # nothing covers it
    for name in ("cancellation", "auditentry"):
        page.goto(f"/admin/runs/{name}/")
        page.locator("#result_list tbody th a").first.click()
        expect(page.locator(".facts")).to_be_visible()
    provider.open(gate)
