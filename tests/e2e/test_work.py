"""What models say on the way to an answer: seen while it comes, then folded away."""

from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.provider import Hold, Round, say, text, words

pytestmark = pytest.mark.browser


def open_chat(page: Page) -> None:
    """A new conversation with the agent that chooses its way by a model."""
    token = page.locator('#composer [name="csrfmiddlewaretoken"]').get_attribute("value")
    created = page.evaluate(
        """async (token) => (await fetch("/api/sessions/", {
            method: "POST", body: JSON.stringify({agent: "routed"}),
            headers: {"Content-Type": "application/json", "X-CSRFToken": token},
        })).json()""",
        token,
    )
    page.goto(f"/chat/{created['id']}/")


def test_work_is_folded_when_it_turns_out_to_be_work_and_stays_so_after_a_reload(visitor, server):
    page = visitor.new_page("/chat/")
    open_chat(page)
    key = uuid4().hex
    server.provider.add(
        Round(words("to the left"), Hold(f"{key}-way"), text("!")), say("The answer."), marker=key
    )
    page.get_by_label("Message", exact=True).fill(f"Please {key}")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#turns").get_by_text("to the left")).to_be_visible()
    server.provider.open(f"{key}-way")
    for _ in range(2):
        expect(page.locator("#turns").get_by_text("The answer.")).to_be_visible()
        work = page.locator(".work")
        expect(work).to_have_count(1)
        expect(page.locator("#turns").get_by_text("to the left!")).to_be_hidden()
        work.get_by_text("On the way").click()
        expect(page.locator("#turns").get_by_text("to the left!")).to_be_visible()
        page.reload()
