"""The dashboard in a real browser: names for screen readers, use by keyboard, updates without a reload."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import PHONE

pytestmark = pytest.mark.browser

PICTURES = [
    "Runs by outcome",
    "Tokens by day and agent",
    "Time a cancel takes to settle",
    "Active runs and stragglers by worker",
]


def number(page, title):
    """The first number of a figure's first row."""
    figure = page.get_by_role("figure", name=title)
    return figure.locator("tbody tr").first.locator("td").first


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, PHONE | {"color_scheme": "dark"}])
def test_every_picture_has_a_name_a_summary_and_its_numbers(visit, options):
    page = visit(**options).new_page("/admin/")

    for title in PICTURES:
        figure = page.get_by_role("figure", name=title)
        expect(figure).to_be_visible()
        expect(figure.locator("figcaption p")).not_to_be_empty()
        figure.locator("summary").click()
        expect(figure.get_by_role("table")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_dashboard_updates_itself_and_keeps_focus_and_open_tables(visit):
    visitor = visit()
    page = visitor.new_page("/admin/")
    figure = page.get_by_role("figure", name="Runs by outcome")
    figure.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(figure.get_by_role("table")).to_be_visible()
    before = int(number(page, "Runs by outcome").inner_text().replace(",", ""))

    chat = visitor.new_page("/")
    chat.get_by_label("Message", exact=True).fill("Hello")
    chat.keyboard.press("Enter")
    page.bring_to_front()

    expect(number(page, "Runs by outcome")).to_have_text(f"{before + 1:,}")
    expect(figure.get_by_role("table")).to_be_visible()
    expect(figure.locator("summary")).to_be_focused()
    expect(page.locator("[data-state]")).to_have_text(re.compile("Updated at"))


def test_updates_can_be_paused_by_key(visit):
    page = visit().new_page("/admin/")
    pause = page.get_by_role("button", name="Pause updates")
    pause.focus()
    page.keyboard.press("Space")
    expect(pause).to_have_attribute("aria-pressed", "true")
    expect(page.locator("[data-state]")).to_have_text("Paused.")
    with page.expect_response("**/admin/dashboard/"):
        page.keyboard.press("Space")
    expect(page.locator("[data-state]")).to_have_text(re.compile("Updated at"))
