"""OpenAI's own Python client, unchanged, against a real server process and a provider that keeps books."""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests import ROOT
from tests.fakes import (
    MARKS_VARIABLE,
    Failure,
    Hold,
    Marks,
    Round,
    ScriptedProvider,
    Silence,
    say,
    text,
)
from tests.fakes import call as tool_call
from tests.polling import PATIENT, until
from tests.provider import Usage, spelled

HELLO = [{"role": "user", "content": "hello"}]


class Server:
    """The product in a process of its own, its model's provider and its tools' marks."""

    def __init__(self, directory: Path, provider: ScriptedProvider) -> None:
        self.provider = provider
        self.marks = Marks(directory / "marks")
        self.log = directory / "log"
        agents = {"assistant": "chat.agent:build_graph", "tooled": "tests.fakes:build_served"}
        environment = {
            **os.environ,
            "DATA_DIR": str(directory / "data"),
            "PORT": "0",
            "AGENTS": json.dumps(agents),
            "AGENT_MODEL": "openai:scripted",
            "OPENAI_BASE_URL": provider.base_url,
            "RUNS_TOOL_TIMEOUT": "2",
            MARKS_VARIABLE: str(self.marks.path),
        }
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "quickstart"],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        said = dict(self.process.stdout.readline().strip().split(": ", 1) for _ in range(4))
        self.address = said["Address"].rstrip("/")
        self.port = int(self.address.rsplit(":", 1)[1])
        self.token = said["Token"]

    def run(self, run_id: str) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.get(f"{self.address}/api/runs/{run_id}/", headers=headers, timeout=PATIENT).json()

    def cancelled_by_disconnect(self, run_id: str) -> bool:
        run = self.run(run_id)
        return run["status"] == "cancelled" and run["cancellation"]["source"] == "disconnect"


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Iterator[Server]:
    with ScriptedProvider().in_thread() as provider:
        server = Server(tmp_path_factory.mktemp("server"), provider)
        try:
            yield server
        finally:
            server.process.terminate()
            server.process.wait(PATIENT)
            server.process.stdout.close()
    assert [
        line
        for line in server.log.read_text().splitlines()
        if " ERROR " in line and "django.request" not in line
    ] == []


@pytest.fixture
def server(serving) -> Iterator[Server]:
    serving.provider.script.clear()
    serving.provider.ledger.clear()
    serving.marks.path.unlink(missing_ok=True)
    yield serving
    serving.provider.script.open_all()


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=server.token, max_retries=0) as found:
        yield found


def hold(server: Server, name: str):
    """A round that stops in mid-answer, at the gate that is returned."""
    server.provider.script.add(Round(text("Hello "), Hold(name), text("world")))
    return server.provider.script.gate(name)


def test_a_completion(client, server):
    server.provider.script.add(say("Hello there.", usage=Usage(12, 5)))
    raw = client.chat.completions.with_raw_response.create(
        model="assistant", messages=[{"role": "system", "content": "Be brief."}, *HELLO], temperature=0.2
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 5)
    assert server.run(raw.headers["x-run-id"])["session"] == raw.headers["x-session-id"]
    sent = server.provider.calls[0].messages
    assert [message["content"] for message in sent[-2:]] == ["Be brief.", "hello"]
    assert len(server.provider.calls) == 1  # no call for a title that nobody would see


def test_a_conversation_goes_on_by_header_and_by_history(client, server):
    first = client.chat.completions.with_raw_response.create(model="assistant", messages=HELLO)
    header = {"X-Session-Id": first.headers["x-session-id"]}
    client.chat.completions.create(
        model="assistant", messages=[{"role": "user", "content": "two"}], extra_headers=header
    )
    said = first.parse().choices[0].message
    client.chat.completions.create(
        model="assistant", messages=[*HELLO, said, {"role": "user", "content": "two"}]
    )
    by_header, by_history = (call.messages for call in server.provider.calls[-2:])
    assert by_header[1:] == by_history[1:]


def test_a_stream_with_usage(client, server):
    gate = hold(server, "stream")
    stream = client.chat.completions.create(
        model="assistant", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    assert next(stream).choices[0].delta.role == "assistant"
    assert next(stream).choices[0].delta.content == "Hello "  # while the model is held
    gate.open()
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "world"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == server.provider.calls[0].completion_tokens


def test_what_the_agents_tools_do_is_seen_and_disturbs_nobody(client, server):
    server.provider.script.add(Round(text("Let me see."), spelled("mark", {"x": "1"})), say("Done."))
    chunks = list(client.chat.completions.create(model="tooled", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me see.\n\nDone."
    events = [chunk.turnkeeper["event"]["type"] for chunk in chunks if hasattr(chunk, "turnkeeper")]
    assert events == ["tool.started", "tool.completed"]
    assert server.marks.read() == ["1"]


def test_the_clients_helper_for_streams_understands_it(client, server):
    server.provider.script.add(Round(text("Let me see."), spelled("mark", {"x": "1"})), say("Done."))
    with client.chat.completions.stream(model="tooled", messages=HELLO) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.content == "Let me see.\n\nDone."


def test_the_models(client):
    assert [model.id for model in client.models.list()] == ["assistant", "tooled"]
    assert client.models.retrieve("tooled").id == "tooled"


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"model": "gpt-4"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "invalid"),
        ({"n": 2}, openai.BadRequestError, "unsupported_parameter"),
        ({"extra_headers": {"X-Session-Id": "unknown"}}, openai.NotFoundError, "not_found"),
        ({"extra_headers": {"Authorization": "Bearer no"}}, openai.AuthenticationError, "invalid_api_key"),
    ],
)
def test_a_refused_request_raises_what_the_client_has_for_it(client, fields, kind, code):
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**{"model": "assistant", "messages": HELLO} | fields)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("rounds", "status", "code"),
    [
        ([Round(text("one"), Failure(500, "It broke."))], 502, "provider"),
        ([tool_call("slow_async", seconds=60)], 504, "timeout"),
        ([tool_call("ask", question="Sure?")], 409, "run_waiting"),
    ],
)
def test_a_run_without_an_answer_raises_once_and_is_not_repeated(client, server, rounds, status, code):
    server.provider.script.add(*rounds)
    patient = client.with_options(max_retries=2)
    with pytest.raises(openai.APIStatusError) as raised:
        patient.chat.completions.create(model="tooled", messages=HELLO)
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert server.run(raised.value.response.headers["x-run-id"])["id"] == raised.value.body["run"]
    assert len(server.provider.calls) == 1

    server.provider.script.add(*rounds)
    stream = patient.chat.completions.create(model="tooled", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.code == code
    assert len(server.provider.calls) == 2


# Disconnects


def test_close_in_mid_stream_closes_the_call_at_the_provider(client, server):
    hold(server, "close")
    raw = client.chat.completions.with_raw_response.create(model="assistant", messages=HELLO, stream=True)
    stream = raw.parse()
    while not next(stream).choices[0].delta.content:
        pass
    stream.close()
    server.provider.ledger.wait_ended(1, PATIENT)
    assert server.provider.calls[0].outcome == "closed"
    until(lambda: server.cancelled_by_disconnect(raw.headers["x-run-id"]))


def test_the_clients_timeout_cancels_the_run_it_waited_for(client, server):
    server.provider.script.add(Round(text("one"), Silence()))
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=3).chat.completions.create(model="assistant", messages=HELLO)
    server.provider.ledger.wait_ended(1, PATIENT)
    assert server.provider.calls[0].outcome == "closed"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("tool", [True, False])
def test_a_reset_reaches_the_model_and_the_tools(server, streaming, tool):
    if tool:
        server.provider.script.add(tool_call("heeding_sync", seconds=2 * PATIENT))
    else:
        hold(server, f"reset {streaming}")
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENT)
    content = json.dumps({"model": "tooled", "messages": HELLO, "stream": streaming})
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Authorization: Bearer {server.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    ]
    connection.sendall("\r\n".join([*lines, "", content]).encode())
    if streaming:
        assert connection.recv(12) == b"HTTP/1.1 200"
    if tool:
        server.marks.wait("heeding_sync started", timeout=PATIENT)
    else:
        server.provider.script.gate(f"reset {streaming}").wait_reached(timeout=PATIENT)

    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    if tool:
        server.marks.wait("heeding_sync cancelled", timeout=PATIENT)
        assert len(server.provider.calls) == 1
    else:
        server.provider.ledger.wait_ended(1, PATIENT)
        assert server.provider.calls[0].outcome == "closed"
    headers = {"Authorization": f"Bearer {server.token}"}
    newest = httpx.get(f"{server.address}/api/sessions/?origin=api", headers=headers, timeout=PATIENT)
    session = newest.json()["results"][0]["id"]
    runs = httpx.get(f"{server.address}/api/sessions/{session}/runs/", headers=headers, timeout=PATIENT)
    until(lambda: server.cancelled_by_disconnect(runs.json()["results"][0]["id"]))


def test_close_after_the_end_changes_nothing(client, server):
    raw = client.chat.completions.with_raw_response.create(model="assistant", messages=HELLO, stream=True)
    list(raw.parse())
    run = server.run(raw.headers["x-run-id"])
    assert (run["status"], run["cancellation"]) == ("completed", None)
