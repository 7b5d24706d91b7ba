"""What a user sees and does in the chat, in a real browser against a real server."""

import json
import re
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from playwright.sync_api import Page, expect

from tests.polling import until
from tests.provider import Failure, Hold, RemoteProvider, Round, call, numbered, say, text, words

pytestmark = pytest.mark.browser

HOSTILE = (
    '<script>document.title="run"</script><img src=x onerror="document.title=\'run\'"> {{7*7}} </script>'
)


@pytest.fixture
def provider(server) -> RemoteProvider:
    return server.provider


def composer(page: Page):
    return page.get_by_label("Message", exact=True)


def send(page: Page, message: str) -> None:
    composer(page).fill(message)
    page.get_by_role("button", name="Send", exact=True).click()


def stop_button(page: Page):
    return page.get_by_role("button", name="Stop", exact=True)


def answers(page: Page):
    return page.locator('.message[data-role="assistant"] .text')


def working(page: Page, state: str) -> None:
    """Wait until the page is live and its latest turn shows this status."""
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator(".turn").last).to_have_attribute("data-status", state)


def held(provider: RemoteProvider, before: str, after: str = " and the rest.") -> tuple[str, str]:
    """Script an answer that stops at a gate; returns the user's words that get it, and the gate."""
    key = uuid4().hex
    provider.add(Round(words(before), Hold(key), text(after)), marker=key)
    return f"Please answer {key}", key


def wait_for_the_model(provider: RemoteProvider, message: str) -> None:
    """Wait until the model has said all it had to say to this message."""

    def has_ended() -> bool:
        calls = provider.ledger()["calls"]
        return any(
            each["messages"][-1]["content"] == message and each["outcome"] == "completed" for each in calls
        )

    until(has_ended, "the end of the model's answer")


def words_of(page: Page) -> str:
    return " ".join(answers(page).last.inner_text().split())


def test_a_visitor_logs_in_and_can_type_at_once(visit):
    visitor = visit(logged_in=False)
    page = visitor.new_page()
    expect(page).to_have_url(re.compile("/login/"))
    visitor.log_in(page)
    expect(composer(page)).to_be_focused()
    expect(page.locator("main")).to_have_count(1)
    assert page.request.get("/favicon.ico").headers["content-type"].startswith("image/svg")


def test_a_message_gets_its_answer_word_by_word(visitor, provider):
    message, gate = held(provider, "The first half", " and **the second** half.")
    page = visitor.new_page()
    send(page, message)
    expect(page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))
    expect(composer(page)).to_have_value("")
    expect(answers(page)).to_have_text("The first half")
    expect(stop_button(page)).to_be_enabled()
    provider.open(gate)
    expect(answers(page)).to_have_text("The first half and the second half.")
    expect(page.locator(".prose strong")).to_have_text("the second")
    expect(stop_button(page)).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    streamed = page.locator("#turns").inner_text()
    page.reload()
    assert page.locator("#turns").inner_text() == streamed


def test_a_turn_goes_on_when_every_page_is_closed(visit, provider):
    message, gate = held(provider, "Before the tab was closed", " and after.")
    first = visit()
    page = first.new_page()
    send(page, message)
    expect(answers(page)).to_have_text("Before the tab was closed")
    url = page.url
    first.context.close()
    provider.open(gate)
    page = visit().new_page(url)
    expect(answers(page)).to_have_text("Before the tab was closed and after.")


def test_the_whole_paragraphs_of_an_answer_on_its_way_are_rendered(visitor, provider):
    key = uuid4().hex
    provider.add(
        Round(text("## Title\n\nSome **bold** words.\n\nThen **half"), Hold(key), text("** of it.")),
        marker=key,
    )
    page = visitor.new_page("/chat/")
    send(page, f"Write {key}")
    expect(page.locator(".prose h2")).to_have_text("Title")
    expect(page.locator(".prose strong")).to_have_text("bold")
    expect(answers(page).locator(".plain")).to_have_text("Then **half")
    page.reload()
    expect(answers(page).locator(".plain")).to_have_text("Then **half")
    provider.open(key)
    expect(page.locator(".prose strong").last).to_have_text("half")
    expect(answers(page)).to_contain_text("Then half of it.")


def test_a_page_that_was_cut_off_gets_what_it_missed(visit, provider):
    message, gate = held(provider, "Before the tunnel,", " inside it, and behind.")
    visitor = visit()
    visitor.expected = "ERR_|WebSocket"
    page = visitor.new_page("/chat/")
    send(page, message)
    expect(answers(page)).to_have_text("Before the tunnel,")
    working(page, "running")
    visitor.context.set_offline(True)
    expect(page.locator("#connection")).to_have_attribute("data-state", "offline")
    provider.open(gate)
    wait_for_the_model(provider, message)
    expect(answers(page)).to_have_text("Before the tunnel,")
    visitor.context.set_offline(False)
    expect(answers(page)).to_have_text("Before the tunnel, inside it, and behind.")
    working(page, "completed")


def test_a_second_tab_sees_the_same_and_the_same_stop(visitor, provider):
    message, _ = held(provider, "Both tabs see")
    one = visitor.new_page()
    send(one, message)
    working(one, "running")
    two = visitor.new_page(one.url)
    other = visitor.new_page("/chat/")
    send(other, held(provider, "An innocent bystander")[0])
    working(other, "running")
    expect(answers(two)).to_have_text("Both tabs see")
    working(two, "running")
    stop_button(one).click()
    for page in (one, two):
        working(page, "cancelled")
        expect(page.get_by_text("Stopped", exact=True)).to_be_visible()
        expect(stop_button(page)).to_be_hidden()
    assert words_of(one) == words_of(two) == "Both tabs see"
    expect(stop_button(other)).to_be_enabled()
    stop_button(other).click()
    working(other, "cancelled")


def test_a_pending_stop_shows_from_the_first_paint(visitor, provider):
    page = slow_to_stop(visitor, provider)
    stop_button(page).click()
    expect(page.get_by_text("Stopping…")).to_be_visible()
    html = page.request.get(page.url).text()
    assert re.search(r'id="stop"[^>]* disabled', html)
    assert "Stopping…" in html
    page.reload()
    expect(stop_button(page)).to_be_disabled()
    expect(page.get_by_text("Stopping…")).to_be_visible()
    working(page, "cancelled")
    expect(stop_button(page)).to_be_hidden()
    expect(page.get_by_text("Stopping…")).to_be_hidden()


def slow_to_stop(visitor, provider) -> Page:
    """A turn whose tool blocks a thread and does not listen, so that its cancel takes the grace."""
    key = uuid4().hex
    provider.add(call("slow_sync", seconds=8), say("Done."), marker=key)
    page = visitor.new_page("/chat/")
    send(page, f"Compute {key}")
    working(page, "running")
    expect(page.locator(".tool-state")).to_have_text("Running")
    return page


@pytest.mark.parametrize(("tool", "state"), [("held_sync", "Running"), ("leave_behind", "Done")])
def test_a_stopped_turn_says_that_something_may_still_be_at_work_until_it_has_ended(
    visit, server, provider, tool, state
):
    key = uuid4().hex
    provider.add(call(tool, mark=key), Round(words("I wait"), Hold(key)), marker=key)
    visitor, without_script = visit(), visit(java_script_enabled=False)
    page = visitor.new_page("/chat/")
    send(page, f"Hold {key}")
    working(page, "running")
    expect(page.locator(".tool-state")).to_contain_text(state)  # rendered with the time it took
    stop_button(page).click()
    working(page, "cancelled")
    note = "Stopped. Something it started may still be at work."
    expect(page.get_by_text(note, exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text(note, exact=True)).to_be_visible()
    plain = without_script.new_page(page.url)
    expect(plain.get_by_text(note, exact=True)).to_be_visible()
    working(page, "cancelled")

    server.marks.write(key)

    expect(page.get_by_text("Stopped", exact=True)).to_be_visible()
    expect(page.get_by_text(note, exact=True)).to_have_count(0)
    plain.reload()
    expect(plain.get_by_text("Stopped", exact=True)).to_be_visible()


def test_the_words_seen_before_stop_are_the_words_after_reload(visitor, provider):
    key = uuid4().hex
    provider.add(Round(numbered(40), Hold(key), numbered(60)), say("Going on."), marker=key)
    page = visitor.new_page("/chat/")
    send(page, f"Count {key}")
    expect(answers(page)).to_contain_text("w40")
    seen = words_of(page)
    stop_button(page).click()
    working(page, "cancelled")
    assert words_of(page) == seen
    expect(page.locator("#main .notice.error")).to_have_count(0)
    page.reload()
    assert words_of(page) == seen
    expect(page.get_by_text("Stopped", exact=True)).to_be_visible()
    send(page, f"Go on {key}")
    expect(answers(page).last).to_have_text("Going on.")
    told = [message for called in provider.ledger()["calls"] for message in called["messages"]]
    assert any(message["role"] == "assistant" and seen in (message["content"] or "") for message in told)


def test_whoever_comes_back_finds_the_running_sign_and_the_stop_button(visit, provider):
    message, _ = held(provider, "Slowly")
    first = visit()
    page = first.new_page()
    send(page, message)
    working(page, "running")
    url = page.url
    first.context.close()
    second = visit()
    page = second.new_page("/chat/")
    row = page.locator(f'.session:has(a[href="{urlsplit(url).path}"])')
    expect(row).to_have_attribute("data-status", "running")
    row.locator(".session-link").click()
    expect(stop_button(page)).to_be_enabled()
    stop_button(page).click()
    expect(stop_button(page)).to_be_hidden()
    expect(row).to_have_attribute("data-status", "idle")


def test_stop_works_without_javascript(visit, provider):
    message, _ = held(provider, "No script here")
    page = visit(java_script_enabled=False).new_page("/chat/")
    send(page, message)
    expect(page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))
    stop_button(page).click()
    expect(async_reload(page, page.get_by_text("Stopped", exact=True))).to_be_visible()
    expect(stop_button(page)).to_be_hidden()


def async_reload(page: Page, wanted):
    """Reload, as somebody without JavaScript does, until it shows."""
    for _ in range(50):
        if wanted.count():
            break
        page.reload()
    return wanted


def test_the_button_recovers_when_the_cancel_cannot_be_sent(visit, provider):
    message, _ = held(provider, "Still going")
    visitor = visit()
    visitor.expected = "ERR_FAILED|WebSocket"
    page = visitor.new_page("/chat/")
    page.route_web_socket(re.compile("/ws/sessions/.+/"), lambda socket: socket.close(code=1011))
    send(page, message)
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    page.route("**/stop/", lambda route: route.abort())
    expect(stop_button(page)).to_be_enabled()
    stop_button(page).click()
    expect(page.get_by_role("alert")).to_contain_text("was not stopped")
    expect(stop_button(page)).to_be_enabled()
    expect(page.get_by_text("Stopping…")).to_be_hidden()
    page.unroute("**/stop/")
    stop_button(page).click()
    page.reload()
    expect(async_reload(page, page.get_by_text("Stopped", exact=True))).to_be_visible()


def test_a_message_sent_while_the_connection_is_away_is_one_turn(visit, provider):
    visitor = visit()
    visitor.expected = "ERR_|WebSocket"
    page = visitor.new_page("/chat/")
    send(page, "Hello")
    working(page, "completed")
    visitor.context.set_offline(True)
    expect(page.locator("#connection")).to_have_attribute("data-state", "offline")
    send(page, "Said in a tunnel")
    expect(page.get_by_role("alert")).to_contain_text("Not sent yet")
    expect(composer(page)).to_have_value("Said in a tunnel")
    visitor.context.set_offline(False)
    expect(page.locator(".turn")).to_have_count(2)
    expect(composer(page)).to_have_value("")
    working(page, "completed")
    page.reload()
    expect(page.locator(".message", has_text="Said in a tunnel")).to_have_count(1)


def test_a_message_that_meets_a_server_that_cannot_take_it_is_sent_again(visit, provider):
    visitor = visit()
    visitor.expected = "WebSocket"
    page = visitor.new_page("/chat/")
    met = []

    def meet(socket):
        server = socket.connect_to_server()

        def pass_on(said):
            frame = json.loads(said)
            if frame["type"] != "turn.start" or met:
                server.send(said)
                return
            met.append(frame)
            refusal = {"type": "error", "code": "unavailable", "message": "Try again in a moment."}
            socket.send(json.dumps({**refusal, "request_id": frame["request_id"]}))
            socket.close(code=1013)

        socket.on_message(pass_on)

    page.route_web_socket(re.compile("/ws/sessions/.+/"), meet)
    send(page, "Hello")
    working(page, "completed")
    send(page, "Said while the database was away")
    expect(page.get_by_role("alert")).to_contain_text("Not sent yet")
    expect(page.locator(".turn")).to_have_count(2)
    expect(composer(page)).to_have_value("")
    working(page, "completed")
    assert len(met) == 1


def test_a_message_for_later_waits_in_line_and_can_be_taken_out(visitor, provider):
    message, gate = held(provider, "First")
    page = visitor.new_page("/chat/")
    send(page, message)
    working(page, "running")
    send(page, "Second in line")
    send(page, "Third in line")
    expect(page.locator(".queued")).to_have_count(2)
    page.locator(".queued").last.get_by_role("button", name="Remove").click()
    expect(page.locator(".queued")).to_have_count(1)
    provider.open(gate)
    expect(turn_about(page, "Second in line")).to_have_attribute("data-status", "completed")
    expect(turn_about(page, "Third in line")).to_have_attribute("data-status", "cancelled")
    expect(page.locator(".queued")).to_have_count(0)


def turn_about(page: Page, message: str):
    return page.locator(".turn", has=page.locator(".message", has_text=message))


def test_a_question_of_the_agent_is_answered_on_the_page(visitor, provider):
    key = uuid4().hex
    provider.add(call("keep_note", text="Milk"), say("It is kept."), marker=key)
    page = visitor.new_page("/chat/")
    send(page, f"Note {key}")
    question = page.locator(".question")
    expect(question).to_contain_text("Keep this note in the conversation? Milk")
    page.reload()
    question.get_by_role("button", name="Yes").click()
    expect(answers(page).last).to_have_text("It is kept.")
    expect(question).to_have_count(0)
    expect(page.locator(".tool-state")).to_contain_text("Done")


def test_a_failed_turn_says_why_and_can_be_tried_again(visitor, provider):
    key = uuid4().hex
    provider.add(Round(text("Half an answer"), Failure(400, "bad")), say("Now it works."), marker=key)
    page = visitor.new_page("/chat/")
    send(page, f"Try {key}")
    working(page, "failed")
    expect(page.locator('[data-mark="failed"]')).to_have_text(re.compile(r"\w+ \w+"))
    expect(answers(page)).to_have_text("Half an answer")
    page.get_by_role("button", name="Try again").click()
    expect(answers(page)).to_have_text("Now it works.")
    expect(page.locator(".turn")).to_have_count(1)


def test_a_conversation_is_renamed_searched_and_deleted(visit, provider):
    visitor = visit()
    page = visitor.new_page("/chat/")
    send(page, "Hello")
    working(page, "completed")
    name = f"Boats {uuid4().hex[:8]}"
    page.get_by_role("button", name="Rename", exact=True).click()
    page.get_by_label("Title", exact=True).fill(name)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    expect(page.locator(".session-link", has_text=name)).to_be_visible()
    expect(page).to_have_title(re.compile(name))

    page.get_by_label("Search conversations").fill("nothing is called this")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.get_by_label("Search conversations").fill(name)
    expect(page.locator(".session-link")).to_have_text(re.compile(name))

    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(name)
    dialog.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/chat/$"))
    page.get_by_label("Search conversations").fill("")
    expect(page.locator(".session-link", has_text=name)).to_have_count(0)


def test_a_conversation_deleted_elsewhere_leaves_with_a_sentence(visit, provider):
    visitor = visit()
    page = visitor.new_page("/chat/")
    send(page, "Hello")
    working(page, "completed")
    other = visitor.new_page(page.url)
    other.get_by_role("button", name="Delete", exact=True).click()
    other.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("That conversation does not exist any more.")).to_be_visible()


def test_hostile_text_is_shown_as_text(visitor, provider):
    key = uuid4().hex
    pieces = [text(HOSTILE[start : start + 3]) for start in range(0, len(HOSTILE), 3)]
    provider.add(
        call("calculate", expression=HOSTILE),
        Round(pieces, Hold(key), text("\n\n[link](javascript:alert(1)) <svg onload=alert(1)>")),
        marker=key,
    )
    page = visitor.new_page("/chat/")
    send(page, f"{HOSTILE} {key}")
    expect(answers(page).last).to_have_text(HOSTILE)
    expect(page.locator('.message[data-role="user"] .text')).to_have_text(f"{HOSTILE} {key}")
    provider.open(key)
    working(page, "completed")
    for _ in range(2):
        expect(answers(page).last).to_contain_text("<svg onload=alert(1)>")
        expect(page.locator("main img, main script, main [onerror], main a[href^=javascript]")).to_have_count(
            0
        )
        expect(page).not_to_have_title("run")
        page.locator(".tool summary").click()
        expect(page.locator('.tool [data-part="args"]')).to_contain_text("<script>")
        page.reload()


def test_no_page_raises_an_error_or_a_policy_report(visitor):
    page = visitor.new_page("/chat/")
    for path in ("/account/", "/chat/?q=x", f"/chat/{uuid4()}/"):
        visitor.expected = "404" if str(path).count("-") > 3 else None
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
