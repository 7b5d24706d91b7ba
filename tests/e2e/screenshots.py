"""``python -m tests.e2e.screenshots``: the pictures of the documentation, from a server that runs for them.

A scripted model gives the same answers each time. The pictures replace those in docs/images.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests import ROOT
from tests.e2e.conftest import ARGUMENTS, CHROMIUM, PHONE, Server, running_server
from tests.provider import RemoteProvider, Round, call, provider_process, spelled, text, words

IMAGES = ROOT / "docs" / "images"
DESKTOP: ViewportSize = {"width": 1200, "height": 760}
QUESTION = "How much does 10,000 grow to at 4 % in 10 and in 20 years? Show me the formula in Python, too."
ANSWER = """\
With interest that is added once a year:

| Years | Factor | Amount |
|------:|-------:|-------:|
| 10 | 1.4802 | 14,802.44 |
| 20 | 2.1911 | 21,911.23 |

```python
def grown(amount: float, rate: float, years: int) -> float:
    return amount * (1 + rate) ** years
```

The second ten years bring **more than the first**: the interest earns interest.
"""
TITLE = "Growth at 4 %"
OTHERS = {
    "Which files changed since Monday?": "Changes since Monday",
    "Plan a week of hiking in the Alps": "A week in the Alps",
    "Draft a polite reply to the landlord": "Reply to the landlord",
    "Explain tides to a ten-year-old": "How tides work",
}


def send(page: Page, message: str) -> None:
    page.get_by_label("Message", exact=True).fill(message)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page).to_have_url(re.compile(r"/chat/[0-9a-f-]{36}/$"))


def log_in(page: Page, server: Server) -> None:
    page.goto("/")
    page.get_by_label("Username").fill(server.user)
    page.get_by_label("Password").fill(server.password)
    page.get_by_role("button", name="Log in").click()


def ask(page: Page, provider: RemoteProvider, question: str, title: str, *rounds: Round) -> None:
    """A first message and its answer, until the turn has ended and the title of the model is there."""
    provider.add(Round(text(title)), system="Write a title")
    provider.add(*rounds, marker=question)
    page.goto("/chat/")
    send(page, question)
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(page.get_by_role("heading", name=title)).to_be_visible()


def take_chat(browser: Browser, server: Server) -> None:
    """A finished answer with a tool call, a table and code, beside the list of chats."""
    context = browser.new_context(base_url=server.address, viewport=DESKTOP, device_scale_factor=1.5)
    page = context.new_page()
    log_in(page, server)
    for question, title in OTHERS.items():
        ask(page, server.provider, question, title, Round(words("Here it is.")))
    growth = call("calculate", expression="10000 * 1.04 ** 10")
    ask(page, server.provider, QUESTION, TITLE, growth, Round(text(ANSWER)))
    page.mouse.move(0, 0)
    save(page, "chat")
    context.close()


def take_phone(browser: Browser, server: Server) -> None:
    """A turn that still runs, on a phone: its words so far, a tool at work, and Stop."""
    question = "How many prime numbers are there up to two million?"
    count = Round(
        words("I count them one by one. You may close this page: the count goes on without it."),
        spelled("count_primes", {"limit": 2_000_000}),
    )
    server.provider.add(count, marker=question)
    phone: Any = PHONE
    context = browser.new_context(base_url=server.address, device_scale_factor=2, **phone)
    page = context.new_page()
    log_in(page, server)
    send(page, question)
    page.get_by_text("count_primes").click()
    expect(page.get_by_text("primes up to")).to_be_visible()
    save(page, "phone")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    context.close()


def save(page: Page, name: str) -> None:
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide")


def main() -> None:
    assert CHROMIUM is not None, "There is no Chromium on the PATH."
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="turnkeeper-screenshots-") as data,
        provider_process() as provider,
        running_server(provider, Path(data)) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        take_chat(browser, server)
        take_phone(browser, server)
        browser.close()


if __name__ == "__main__":
    main()
