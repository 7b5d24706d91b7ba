"""The programs of the documents run as they stand there."""

import ast
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from langchain_core.messages import HumanMessage
from playwright._impl._driver import compute_driver_executable

from runs import agents
from tests.chat.server.test_commands import Command, introduction
from tests.docs.pages import PAGES, name_of, programs, read, section

PATIENT = 90
ALL = {page: page.read_text() for page in PAGES}


class Cutter:
    """A way to the server that breaks the first connections off once they have carried so many bytes."""

    def __init__(self, port: int, cuts: int, after: int) -> None:
        self._port, self._after = port, after
        self.cuts_left = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()
            threading.Thread(target=self._carry_back, args=(server, client), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                server.sendall(data)
        except OSError:
            pass
        _end(server)

    def _carry_back(self, server: socket.socket, client: socket.socket) -> None:
        streamed = 0
        try:
            while data := server.recv(65536):
                client.sendall(data)
                streamed += len(data) if streamed or b"text/event-stream" in data else 0
                if self.cuts_left and streamed > self._after:
                    self.cuts_left -= 1
                    break
        except OSError:
            pass
        _end(client)

    def close(self) -> None:
        self._listener.close()


def _end(connection: socket.socket) -> None:
    """Close at once, although another thread may be reading from it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """What ``make run`` prints."""
    data = str(tmp_path_factory.mktemp("data"))
    command = Command("quickstart", DATA_DIR=data, SECRET_KEY="", ALLOWED_HOSTS="", PORT="0")
    yield introduction(command)
    command.end()


def execute(arguments: list[str], lines: dict[str, str], address: str = "") -> str:
    done = subprocess.run(
        arguments,
        env={
            "PATH": os.environ["PATH"],
            "ADDRESS": address or lines["Address"].rstrip("/"),
            "TOKEN": lines["Token"],
        },
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
class TestClients:
    """Each as it stands there, against a server as ``make run`` starts it."""

    def test_with_curl(self, lines):
        (program,) = programs(section("clients/programs.md", "curl"), "sh")
        said = execute(["sh", "-euc", program], lines)
        assert "event: run.queued" in said
        assert "event: run.completed" in said
        assert '"role":"assistant"' in said

    def test_in_python_through_broken_connections(self, lines):
        (program,) = programs(section("clients/programs.md", "Python, over REST and SSE"), "python")
        way = Cutter(urlsplit(lines["Address"]).port, cuts=3, after=2_000)
        said = execute([sys.executable, "-c", program], lines, way.address)
        way.close()
        assert way.cuts_left == 0
        text, _, end = said.rstrip("\n").rpartition("\n")
        assert end == "run.completed"
        with httpx.Client(
            base_url=lines["Address"], headers={"Authorization": f"Bearer {lines['Token']}"}
        ) as api:
            session = api.get("/api/sessions/").json()["results"][0]["id"]
            messages = api.get(f"/api/sessions/{session}/history/").json()["messages"]
        assert text == messages[-1]["text"]
        assert len(text) > 2_000

    def test_in_python_over_a_websocket_with_a_stop(self, lines):
        (program,) = programs(section("clients/programs.md", "Python, over a WebSocket"), "python")
        text, _, end = execute([sys.executable, "-c", program], lines).rstrip("\n").rpartition("\n")
        assert end == "run.cancelled"
        assert len(text.split()) > 3

    def test_in_javascript_through_broken_connections(self, lines):
        (program,) = programs(section("clients/programs.md", "JavaScript"), "js")
        node, _ = compute_driver_executable()  # Playwright brings one along
        way = Cutter(urlsplit(lines["Address"]).port, cuts=2, after=500)
        said = execute([node, "--input-type=module", "-e", program], lines, way.address)
        way.close()
        assert way.cuts_left == 0
        assert said.startswith("run.queued\nrun.started\nrun.completed\n")
        assert len(said.split()) > 6

    def test_with_the_openai_client(self, lines):
        (program,) = programs(section("clients/programs.md", "Python, with OpenAI's client"), "python")
        assert len(execute([sys.executable, "-c", program], lines).split()) > 3


class TestAgents:
    def test_the_graph_answers(self):
        (program,) = programs(section("agents.md", "Serve your own graph"), "python")
        names = {}
        exec(program, names)
        answer = names["build_graph"]().compile().invoke({"messages": [HumanMessage("Hello")]})
        assert answer["messages"][-1].text == "You said: Hello"

    def test_the_policies_are_taken(self):
        (program,) = programs(section("agents.md", "Policies"), "python")
        names = {}
        exec(program, names)
        assert names["build_graph"].policy == agents.Policy(
            title="Support",
            description="Answers questions about orders.",
            on_interrupt="resume",
            idempotent_tools=frozenset({"look_up_order"}),
        )

    def test_the_tool_that_blocks_is_a_tool(self):
        (program,) = programs(section("agents.md", "Tools"), "python")
        names = {}
        exec(program, names)
        assert names["convert"].name == "convert"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
class TestForm:
    """What cannot be run here is at least well-formed."""

    def test_python_parses(self, page):
        for program in programs(ALL[page], "python"):
            ast.parse(program)

    def test_shell_parses(self, page):
        for program in programs(ALL[page], "sh"):
            words = re.sub(r"<[\w ]+>", "address", program)  # stands for what a reader knows
            subprocess.run(["sh", "-n", "-c", words], check=True)

    def test_yaml_parses(self, page):
        for program in programs(ALL[page], "yaml"):
            assert yaml.safe_load(program)

    def test_blocks_of_proxies_are_closed(self, page):
        for language in ("nginx", "caddyfile"):
            for program in programs(ALL[page], language):
                assert program.count("{") == program.count("}") > 0

    def test_programs_in_the_agents_setting_are_json(self, page):
        for value in re.findall(r"AGENTS='([^']+)'", ALL[page]):
            assert json.loads(value)


class TestDeployment:
    def test_a_proxy_passes_sockets_and_streams_on_and_waits_long_enough(self, settings):
        (nginx,) = programs(read("operating/deploy.md"), "nginx")
        for line in ("Upgrade $http_upgrade", "proxy_buffering off", "X-Forwarded-For", "X-Forwarded-Proto"):
            assert line in nginx
        assert int(re.search(r"proxy_read_timeout (\d+)s", nginx)[1]) > settings.RUNS_RUN_TIMEOUT
        (caddy,) = programs(read("operating/deploy.md"), "caddyfile")
        assert "flush_interval -1" in caddy
        assert int(re.search(r"response_header_timeout (\d+)s", caddy)[1]) > settings.RUNS_RUN_TIMEOUT

    def test_units_give_their_process_the_time_to_leave(self, settings):
        units = [unit for unit in programs(read("operating/deploy.md"), "systemd") if "Restart=" in unit]
        assert len(units) == 2
        for unit in units:
            assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > settings.RUNS_DRAIN_TIMEOUT

    def test_the_install_is_what_the_gate_checks(self):
        program = programs(section("operating/deploy.md", "Install"), "sh")[0]
        assert "ALLOWED_HOSTS=chat.example.com TRUSTED_PROXY=127.0.0.1" in program
