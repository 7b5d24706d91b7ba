"""The commands that start a server, run as a user runs them: in a process of their own."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests import ROOT

PATIENT = 90.0  # seconds for what takes a few on an idle machine


class Command:
    """A manage.py command in the background, its output read line by line."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self, count: int) -> list[str]:
        # Whoever waits for a line that never comes gets the end of the output instead.
        limit = threading.Timer(PATIENT, self.process.kill)
        limit.start()
        found = [self.process.stdout.readline().rstrip("\n") for _ in range(count)]
        limit.cancel()
        assert found[-1], self.process.stderr.read()
        return found

    def leave(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Tell it to leave, which it must do without a word."""
        self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=PATIENT)
        assert (self.process.returncode, out, errors) == (0, "", "")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run(tmp_path):
    """Starts a command on a data folder of this test's own, with no secret key in the environment."""
    commands = []

    def start(*arguments: str, **environment: str) -> Command:
        command = Command(
            *arguments,
            **{
                "DATA_DIR": str(tmp_path / "data"),
                "SECRET_KEY": "",
                "ALLOWED_HOSTS": "",
                "PORT": "0",
                **environment,
            },
        )
        commands.append(command)
        return command

    yield start
    for command in commands:
        command.end()


def introduction(command: Command) -> dict[str, str]:
    """The four lines that quickstart prints."""
    found = dict(line.split(": ", 1) for line in command.lines(4))
    assert list(found) == ["Address", "User", "Password", "Token"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", found["Address"])
    return found


@contextmanager
def log_in(lines: dict[str, str]) -> Iterator[httpx.Client]:
    """A browser in which the demo user is logged in."""
    with httpx.Client(base_url=lines["Address"], timeout=PATIENT, follow_redirects=True) as browser:
        browser.get("/login/")
        browser.post(
            "/login/",
            data={
                "username": lines["User"],
                "password": lines["Password"],
                "csrfmiddlewaretoken": browser.cookies["csrftoken"],
            },
        ).raise_for_status()
        assert "sessionid" in browser.cookies
        yield browser


def api(lines: dict[str, str]) -> httpx.Client:
    return httpx.Client(
        base_url=lines["Address"], timeout=PATIENT, headers={"Authorization": f"Bearer {lines['Token']}"}
    )


def ids(lines: dict[str, str]) -> list[str]:
    with api(lines) as client:
        return [
            session["id"] for session in client.get("/api/sessions/").raise_for_status().json()["results"]
        ]


def test_quickstart_prints_four_lines_that_work_and_the_same_ones_again(run, tmp_path):
    first = run("quickstart")
    lines = introduction(first)
    assert lines["User"] == "demo"
    with log_in(lines) as browser:
        assert browser.get("/admin/").raise_for_status().url.path == "/admin/", "the demo user operates"
    with api(lines) as client:
        session = client.post("/api/sessions/", json={"title": "Kept"}).raise_for_status().json()["id"]
    first.leave()

    second = run("quickstart")
    again = introduction(second)
    assert again | {"Address": ""} == lines | {"Address": ""}
    assert ids(again) == [session]
    with log_in(again):
        pass
    second.leave(signal.SIGINT)

    for name in ("secret_key", "demo_account.json"):
        assert stat.S_IMODE((tmp_path / "data" / name).stat().st_mode) == 0o600


def test_quickstart_puts_right_what_somebody_took_away(run):
    first = run("quickstart", LOG_LEVEL="ERROR")
    lines = introduction(first)
    with log_in(lines) as browser:
        # The account goes, and its tokens with it.
        from_admin = "from django.contrib.auth.models import User; User.objects.get(username='demo').delete()"
        run("shell", "-v", "0", "-c", from_admin).process.wait(PATIENT)
        assert browser.get("/api/agents/").status_code == 401
    first.leave()

    again = introduction(run("quickstart"))
    assert again["Password"] == lines["Password"]
    assert again["Token"] != lines["Token"]
    assert ids(again) == []
    with log_in(again):
        pass


def test_quickstart_listens_on_the_loopback_address_only(run):
    port = int(introduction(run("quickstart"))["Address"].rsplit(":", 1)[1].strip("/"))
    listening = [
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening


def test_a_port_in_use_is_said_in_a_sentence(run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = run("quickstart", PORT=str(port))
        out, errors = command.process.communicate(timeout=PATIENT)
    assert (command.process.returncode, out) == (1, "")
    assert errors == f"CommandError: Cannot listen on 127.0.0.1:{port}: Address already in use.\n"


def test_a_second_server_on_the_same_sqlite_data_is_refused(run, tmp_path):
    first = run("quickstart")
    introduction(first)
    second = run("serve", "--port", "0")
    out, errors = second.process.communicate(timeout=PATIENT)
    assert (second.process.returncode, out) == (1, "")
    assert errors == (
        f"CommandError: Process {first.process.pid} already serves {tmp_path / 'data'}, and with SQLite "
        "there can be only one server. Stop it, or set DATABASE_URL to use PostgreSQL.\n"
    )


def test_serve_needs_a_database_that_is_up_to_date(run):
    command = run("serve", SECRET_KEY="a key of the environment")
    out, errors = command.process.communicate(timeout=PATIENT)
    assert (command.process.returncode, out) == (1, "")
    assert errors == "CommandError: The database is not up to date. Run `manage.py migrate` first.\n"


def test_serve_says_where_it_listens(run):
    key = "a key of the environment"
    assert run("migrate", SECRET_KEY=key).process.wait(PATIENT) == 0
    command = run("serve", SECRET_KEY=key)
    (line,) = command.lines(1)
    assert httpx.get(line.removeprefix("Address: ") + "login/", timeout=PATIENT).status_code == 200
    command.leave()


def test_only_quickstart_starts_without_a_key(run, tmp_path):
    command = run("serve")
    _, errors = command.process.communicate(timeout=PATIENT)
    assert command.process.returncode == 1
    assert errors.startswith("SECRET_KEY is not set")
    assert not (tmp_path / "data" / "secret_key").exists()


def test_runserver_says_what_to_use(run):
    command = run("runserver", SECRET_KEY="a key of the environment")
    _, errors = command.process.communicate(timeout=PATIENT)
    assert command.process.returncode == 1
    assert "manage.py serve" in errors
