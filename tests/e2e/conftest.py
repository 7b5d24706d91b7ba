"""A real server process, a scripted provider, and a real Chromium.

Without a Chromium the browser tests are left out with a line that names them; with NOTHING_SKIPPED set its
absence is a failure.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    StorageState,
    expect,
    sync_playwright,
)

from tests import ROOT
from tests.fakes.tools import MARKS_VARIABLE, Marks
from tests.provider import RemoteProvider, provider_process, say

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}

expect.set_options(timeout=15_000)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if CHROMIUM is not None or os.environ.get("NOTHING_SKIPPED"):
        return
    left_out = [item for item in items if item.get_closest_marker("browser")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[_LEFT_OUT] = [item.name for item in left_out]


_LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    names = config.stash.get(_LEFT_OUT, [])
    if names:
        terminalreporter.write_line(f"No Chromium was found, so these did not run: {', '.join(names)}.")


@dataclass
class Server:
    """A running quickstart and its scripted provider."""

    address: str
    user: str
    password: str
    provider: RemoteProvider
    process: subprocess.Popen[str]
    marks: Marks


@contextlib.contextmanager
def running_server(provider: RemoteProvider, data: Path, port: int = 0) -> Iterator[Server]:
    """A quickstart in a process of its own; ended in good order unless the test has ended it."""
    environment = {
        **os.environ,
        "DATA_DIR": str(data),
        "PORT": str(port),
        "SECRET_KEY": "",
        "AGENTS": (
            '{"assistant": "tests.e2e.agent:build_graph", "reviewed": "tests.e2e.agent:build_reviewed",'
            ' "routed": "tests.e2e.agent:build_routed"}'
        ),
        MARKS_VARIABLE: str(data / "marks"),
        "AGENT_MODEL": "openai:scripted",
        "OPENAI_BASE_URL": provider.base_url,
        "RUNS_CANCEL_GRACE": "4",  # long enough to look at a pending stop more than once
    }
    with subprocess.Popen(
        [sys.executable, "manage.py", "quickstart"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            told = _read_introduction(process)
            marks = Marks(data / "marks")
            yield Server(
                told["Address"].rstrip("/"), told["User"], told["Password"], provider, process, marks
            )
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with provider_process() as provider:
        provider.add(say("A title by the model"), system="Write a title", forever=True)
        with running_server(provider, tmp_path_factory.mktemp("data")) as started:
            yield started


def _read_introduction(process: subprocess.Popen[str]) -> dict[str, str]:
    """The four lines; what the server says later is read away, so that it never waits for us."""
    assert process.stdout is not None
    told: dict[str, str] = {}
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.match(r"(Address|User|Password|Token): (.+)", line):
            told[found[1]] = found[2].strip()
        if len(told) == 4:
            threading.Thread(target=process.stdout.read, name="server output", daemon=True).start()
            return told
    pytest.fail("The server did not start:\n" + "".join(said))


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    assert CHROMIUM is not None, "There is no Chromium on the PATH."
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
    yield browser
    browser.close()


@dataclass
class Visitor:
    """One browser with a login of its own. What goes wrong in its pages is collected."""

    context: BrowserContext
    server: Server
    problems: list[str] = field(default_factory=list)
    expected: str | None = None  # a pattern of console errors that the test provokes

    def new_page(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.problems.append(f"{page.url}: {error}"))
        page.on("console", self._hear)
        page.goto(path)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        if self.expected is None or not re.search(self.expected, message.text):
            self.problems.append(message.text)

    def log_in(self, page: Page) -> None:
        page.get_by_label("Username").fill(self.server.user)
        page.get_by_label("Password").fill(self.server.password)
        page.get_by_role("button", name="Log in").click()


# A report of the content security policy is an error on the console too; this also hears silent ones.
_HEAR_POLICY = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""


@pytest.fixture(scope="module")
def login(browser: Browser, server: Server) -> StorageState:
    """The cookies of one login, for all tests that are not about logging in."""
    context = browser.new_context(base_url=server.address)
    visitor = Visitor(context, server)
    page = visitor.new_page()
    visitor.log_in(page)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def visit(browser: Browser, server: Server, login: StorageState) -> Iterator[Callable[..., Visitor]]:
    """``visit(**options)`` opens another browser of the same user; at the end none may have complained."""
    visitors: list[Visitor] = []

    def open_browser(*, logged_in: bool = True, **options: Any) -> Visitor:
        context = browser.new_context(
            base_url=server.address, storage_state=login if logged_in else None, **options
        )
        context.set_default_timeout(15_000)
        context.add_init_script(_HEAR_POLICY)
        visitors.append(Visitor(context, server))
        return visitors[-1]

    yield open_browser
    for visitor in visitors:
        visitor.context.close()
    assert [visitor.problems for visitor in visitors] == [[] for _ in visitors]


@pytest.fixture(params=["desktop", "phone"])
def visitor(request: pytest.FixtureRequest, visit: Callable[..., Visitor]) -> Visitor:
    """The user's browser, once with a large and once with a small screen."""
    return visit(**(PHONE if request.param == "phone" else {}))
