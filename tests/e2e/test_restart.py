"""A page that stays open while the server crashes and comes back."""

from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Visitor, running_server
from tests.provider import Hold, Round, say, text

pytestmark = pytest.mark.browser


def test_after_a_crash_the_open_page_offers_to_resume_retry_or_dismiss(browser, server, tmp_path):
    provider, key = server.provider, uuid4().hex
    held = Round(text("Before the crash"), Hold(key))
    provider.add(held, held, say("After it."), marker=key)
    with running_server(provider, tmp_path) as first:
        visitor = Visitor(browser.new_context(base_url=first.address), first, expected="WebSocket|ERR_")
        page = visitor.new_page()
        visitor.log_in(page)
        other = visitor.new_page("/chat/")
        for one in (page, other):
            one.get_by_label("Message", exact=True).fill(f"Please {key}")
            one.get_by_role("button", name="Send", exact=True).click()
            expect(one.locator('.message[data-role="assistant"] .text')).to_have_text("Before the crash")
        answer = page.locator('.message[data-role="assistant"] .text')
        page.get_by_label("Message", exact=True).fill("A draft")
        first.process.kill()
        first.process.wait()
        expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    with running_server(provider, tmp_path, urlsplit(first.address).port):
        notice = page.locator('[data-mark="interrupted"]')
        expect(notice).to_contain_text("The server stopped before this answer was finished", timeout=45_000)
        for name in ("Resume", "Retry", "Dismiss"):
            expect(notice.get_by_role("button", name=name)).to_be_enabled()
        expect(page.locator(".session").first).to_have_attribute("data-status", "interrupted")
        expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
        notice.get_by_role("button", name="Resume").click()
        expect(answer.last).to_have_text("After it.")
        expect(page.locator(".turn").last).to_have_attribute("data-status", "completed")
        expect(page.get_by_text("Interrupted, then resumed")).to_be_visible()
        expect(page.get_by_label("Message", exact=True)).to_have_value("A draft")
        hear_of_an_operators_decision(visitor, other)
        assert visitor.problems == []
        visitor.context.close()


def hear_of_an_operators_decision(visitor, page):
    """The page of an interrupted turn stays open while an operator decides about it."""
    notice = page.locator('[data-mark="interrupted"]')
    expect(notice.get_by_role("button", name="Dismiss")).to_be_enabled(timeout=45_000)
    console = visitor.new_page("/admin/")
    console.get_by_role("link", name="Interrupted turns").click()
    console.locator("#result_list tbody th a").click()
    console.get_by_role("button", name="Dismiss").click()
    console.get_by_label("Reason").fill("The disk was full")
    console.locator(".submit-row").get_by_role("button", name="Dismiss").click()
    expect(console.locator(".messagelist")).to_contain_text("It was dismissed")
    expect(notice).to_have_text("Interrupted, then dismissed by an operator: The disk was full")
