"""The page that shows the API, in a real browser; the visitor's fixture fails on any complaint of its own."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_the_api_docs_show_every_operation_and_break_no_policy(visit):
    page = visit(logged_in=False).new_page("/api/docs/")
    expect(page.get_by_text("Durable, cancellable turns of LangGraph agents.")).to_be_visible()
    operations = page.locator(".opblock")
    expect(operations).to_have_count(20)
    page.locator("#operations-sessions-start_run .opblock-summary-control").click()
    expect(page.get_by_text("Idempotency-Key", exact=True)).to_be_visible()
    expect(page.get_by_text("idempotency_conflict").first).to_be_visible()


def test_the_api_can_be_tried_from_its_docs_with_the_browsers_login(visit):
    page = visit().new_page("/api/docs/")
    page.locator("#operations-sessions-create_session .opblock-summary-control").click()
    operation = page.locator("#operations-sessions-create_session")
    operation.get_by_role("button", name="Try it out").click()
    operation.locator("textarea").fill('{"title": "From the docs"}')
    operation.get_by_role("button", name="Execute", exact=True).click()
    expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text("201")
