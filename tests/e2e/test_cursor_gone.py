"""A page that comes back after so long that the log it had begun to read has been made compact."""

import os
import subprocess
import sys
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import ROOT, Visitor, running_server
from tests.polling import until
from tests.provider import Hold, Round, numbered, text

pytestmark = pytest.mark.browser


def make_compact(data):
    """Make the log of the run compact, as soon as it has ended."""
    environment = {**os.environ, "DATA_DIR": str(data), "SECRET_KEY": ""}
    command = [sys.executable, "manage.py", "prune_runs", "--compact-after", "0"]

    def is_compact():
        told = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return "made compact: 1," in told.stdout

    until(is_compact, "the compaction")


def test_cursor_gone_has_the_page_load_the_history(browser, server, tmp_path):
    provider, key = server.provider, uuid4().hex
    provider.add(Round(text("Seen before "), Hold(key), numbered(10, delay=0.01)), marker=key)
    with running_server(provider, tmp_path) as started:
        visitor = Visitor(browser.new_context(base_url=started.address), started, expected="WebSocket|ERR_")
        page = visitor.new_page()
        visitor.log_in(page)
        page.get_by_label("Message", exact=True).fill(f"Please {key}")
        page.get_by_role("button", name="Send", exact=True).click()
        answer = page.locator('.message[data-role="assistant"] .text')
        expect(answer).to_contain_text("Seen before")
        frames = []
        page.on(
            "websocket", lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame)))
        )
        visitor.context.set_offline(True)
        expect(page.locator("#connection")).to_have_attribute("data-state", "offline")

        provider.open(key)
        make_compact(tmp_path)
        visitor.context.set_offline(False)

        expect(answer).to_have_text("Seen before w1 w2 w3 w4 w5 w6 w7 w8 w9 w10")
        expect(page.locator(".turn").last).to_have_attribute("data-status", "completed")
        expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        assert any("cursor_gone" in frame for frame in frames)
        assert visitor.problems == []
        visitor.context.close()
