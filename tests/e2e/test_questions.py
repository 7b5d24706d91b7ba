"""Questions of an agent on the page: answered by buttons and forms, asked again when they are refused."""

from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.provider import calls, say

pytestmark = pytest.mark.browser

INCOMPLETE = "status of 400"  # what the browser says of a form that is sent back
MAIL = {"to": "bob@example.org", "subject": "Rent", "body": "Dear Bob", "copies": ["eve@example.org"]}


def open_chat(page: Page) -> None:
    """A new conversation with the agent that asks."""
    token = page.locator('#composer [name="csrfmiddlewaretoken"]').get_attribute("value")
    created = page.evaluate(
        """async (token) => (await fetch("/api/sessions/", {
            method: "POST", body: JSON.stringify({agent: "reviewed"}),
            headers: {"Content-Type": "application/json", "X-CSRFToken": token},
        })).json()""",
        token,
    )
    page.goto(f"/chat/{created['id']}/")


def ask(page: Page, provider, *asked: tuple[str, dict]):
    """Let the model call these tools; the question that the page shows."""
    key = uuid4().hex
    provider.add(calls(*asked), say("So be it."), marker=key)
    page.get_by_label("Message", exact=True).fill(f"Please do {key}")
    page.get_by_role("button", name="Send", exact=True).click()
    question = page.locator(".question")
    expect(question).to_be_visible()
    return question


def told(server) -> list[str]:
    """The results of tools in the model's last call."""
    messages = server.provider.ledger()["calls"][-1]["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


def ends(page: Page) -> None:
    expect(page.locator('.message[data-role="assistant"] .text').last).to_have_text("So be it.")
    expect(page.locator(".question")).to_have_count(0)


@pytest.fixture
def page(visitor) -> Page:
    visitor.expected = INCOMPLETE
    page = visitor.new_page("/chat/")
    open_chat(page)
    return page


def test_a_tool_call_is_approved_with_one_button(page, server):
    question = ask(page, server.provider, ("send_mail", MAIL))
    expect(question).to_contain_text("Tool execution requires approval")
    expect(question.locator("dd").first).to_have_text("bob@example.org")
    question.get_by_role("button", name="Approve", exact=True).click()
    ends(page)
    assert told(server) == ["Sent to bob@example.org: Rent"]


def test_the_arguments_of_a_tool_call_are_edited_in_a_form_and_json_is_checked(page, server):
    question = ask(page, server.provider, ("send_mail", MAIL))
    question.get_by_text("Edit", exact=True).click()
    expect(question.get_by_label("body")).to_have_value("Dear Bob")
    question.get_by_label("subject").fill("Rent for May")
    question.get_by_label("copies").fill("eve")
    question.get_by_role("button", name="Approve with these").click()
    expect(question.get_by_role("alert").filter(visible=True)).to_contain_text("must be JSON")
    expect(question.get_by_label("copies")).to_be_focused()
    expect(question.get_by_label("subject")).to_have_value("Rent for May")
    question.get_by_label("copies").fill("[]")
    question.get_by_role("button", name="Approve with these").click()
    ends(page)
    assert "Sent to bob@example.org: Rent for May" in told(server)[0]


def test_a_tool_call_is_rejected_with_a_reason(page, server):
    question = ask(page, server.provider, ("delete_mail", {"number": 7}))
    expect(question.get_by_text("Edit", exact=True)).to_have_count(0)
    question.get_by_text("Reject", exact=True).first.click()
    question.get_by_label("Reason").fill("I still need it.")
    question.get_by_role("button", name="Reject", exact=True).click()
    ends(page)
    assert "I still need it." in told(server)[0]


def test_several_tool_calls_are_decided_together(page, server):
    question = ask(page, server.provider, ("send_mail", MAIL), ("delete_mail", {"number": 7}))
    question.get_by_role("button", name="Answer", exact=True).click()
    expect(question.get_by_text("Choose one of these.").filter(visible=True)).to_have_count(2)
    first, second = question.get_by_role("group").all()
    expect(first.get_by_label("Answer in place of the tool")).to_be_hidden()
    first.get_by_label("Respond").check()
    first.get_by_label("Answer in place of the tool").fill("I sent it myself.")
    second.get_by_label("Approve").check()
    question.get_by_role("button", name="Answer", exact=True).click()
    ends(page)
    assert told(server) == ["I sent it myself.", "Deleted 7"]


def test_a_refused_answer_says_why_and_keeps_what_was_typed(page, server):
    question = ask(page, server.provider, ("book", {"city": "Oslo", "nights": 2}))
    question.get_by_text("Edit", exact=True).click()
    question.get_by_label("city").fill("Paris")
    question.get_by_role("button", name="Accept with these").click()
    expect(question.get_by_role("alert").filter(visible=True)).to_have_text(
        "The agent did not accept the answer: There are rooms in Rome only."
    )
    expect(question.get_by_label("city")).to_be_visible()
    page.reload()
    expect(question.get_by_label("city")).to_have_value("Paris")
    question.get_by_label("city").fill("Rome")
    question.get_by_role("button", name="Accept with these").click()
    ends(page)
    assert told(server) == ["edit: Rome"]


@pytest.mark.parametrize(("button", "kind"), [("Accept", "accept"), ("Ignore", "ignore")])
def test_a_human_interrupt_is_answered_with_a_button(page, server, button, kind):
    question = ask(page, server.provider, ("book", {"city": "Oslo", "nights": 2}))
    question.get_by_role("button", name=button, exact=True).click()
    ends(page)
    assert told(server) == [f"{kind}: Oslo"]


def test_a_schema_is_a_form(page, server):
    question = ask(page, server.provider, ("plan", {"city": "Oslo"}))
    expect(question.get_by_label("Nights")).to_have_value("2")
    question.get_by_label("Class").select_option("Second")
    question.get_by_role("button", name="Answer", exact=True).click()
    expect(question.get_by_text("This is needed.").filter(visible=True)).to_have_count(1)
    question.get_by_label("Name on the ticket").fill("Alice")
    question.get_by_label("Name on the ticket").press("Enter")
    ends(page)
    assert told(server) == [f"Planned: { ({'nights': 2, 'class': 'Second', 'name': 'Alice'}) }"]


RENDER_AGAIN = """async (sending) => {
    const app = document.querySelector("script[type=module]").src;
    const { reconcile, parse } = await import(new URL("dom.js", app));
    const turn = document.querySelector(".turn:last-child");
    const buttons = turn.querySelectorAll("form button");
    if (sending) for (const button of buttons) button.disabled = true;
    const html = await (await fetch(`${location.pathname}messages/?run=${turn.dataset.run}`)).text();
    reconcile(turn, parse(html).querySelector(".turn"));
    for (const button of buttons) button.disabled = false;
}"""


@pytest.mark.parametrize("sending", [False, True], ids=["at rest", "while it is sent"])
def test_a_rendering_takes_nothing_away_from_a_form_that_is_filled_in(page, server, sending):
    question = ask(page, server.provider, ("plan", {"city": "Oslo"}))
    question.get_by_role("button", name="Answer", exact=True).click()
    missing = question.get_by_text("This is needed.").filter(visible=True)
    expect(missing.first).to_be_visible()
    question.get_by_label("Name on the ticket").fill("Alice")
    button = question.get_by_role("button", name="Answer", exact=True).element_handle()
    page.evaluate(RENDER_AGAIN, sending)
    assert button.evaluate("button => button.isConnected")
    expect(missing.first).to_be_visible()
    expect(question.get_by_label("Name on the ticket")).to_have_value("Alice")


def test_questions_are_answered_without_javascript(visit, server):
    page = visit().new_page("/chat/")
    open_chat(page)
    ask(page, server.provider, ("send_mail", MAIL))
    plain_visitor = visit(java_script_enabled=False)
    plain_visitor.expected = INCOMPLETE
    plain = plain_visitor.new_page(page.url)
    question = plain.locator(".question")
    question.get_by_text("Edit", exact=True).click()
    question.get_by_label("subject").fill("Rent for May")
    question.get_by_label("copies").fill("eve")
    question.get_by_role("button", name="Approve with these").click()
    expect(question.get_by_role("alert").filter(visible=True)).to_contain_text("must be JSON")
    expect(question.get_by_label("subject")).to_have_value("Rent for May")
    question.get_by_label("copies").fill("[]")
    question.get_by_role("button", name="Approve with these").click()
    ends(page)
    assert "Rent for May" in told(server)[0]
