"""A data folder that the first version left behind: this one shows the same and goes on with it."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.polling import until
from tests.processes.recording import ANSWERS, told
from tests.processes.server import Server
from tests.provider import provider_process, say

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def provider():
    with provider_process() as remote:
        yield remote


@pytest.fixture(scope="module")
def server(provider, tmp_path_factory):
    data = tmp_path_factory.mktemp("recorded") / "data"
    with tarfile.open(RECORDED / "1.0.0.tar.gz") as archive:
        archive.extractall(data, filter="data")
    server = Server(data, provider)
    server.start()
    yield server
    server.close()


@pytest.mark.slow
def test_what_the_first_version_said_is_what_this_one_says(server):
    assert _without_additions(told(server)) == json.loads((server.data / ANSWERS).read_text())


def _without_additions(said: Any) -> Any:
    """An answer without what the first version did not say.

    That is a Run's questions and stragglers, and for whom a Message is.
    """
    if isinstance(said, dict):
        added = {"questions", "stragglers"} if "on_disconnect" in said else {"audience"}
        return {key: _without_additions(value) for key, value in said.items() if key not in added}
    return [_without_additions(one) for one in said] if isinstance(said, list) else said


@pytest.mark.slow
def test_each_conversation_of_the_first_version_goes_on(server):
    for session, before in told(server).items():
        match before["session"]["status"]:
            case "interrupted":
                run = before["session"]["active_run"] or before["runs"]
                [lost] = [
                    run for run in before["runs"] if run["status"] == "interrupted" and not run["resolution"]
                ]
                server.provider.add(say("Back again."), marker="lost and undecided")
                server.provider.add(say("And this one, too."), marker="behind the lost one")
                server.ended(server.post(f"runs/{lost['id']}/resume/")["id"])
            case "waiting":
                server.provider.add(say("So be it."), marker="a question")
                run = before["session"]["active_run"]["id"]
                asked = next(e for e in before["events"][run] if e["type"] == "run.waiting")
                answers = {question["id"]: "Yes" for question in asked["data"]["questions"]}
                server.post(f"runs/{run}/answer/", answers=answers)
                assert server.ended(run)["status"] == "completed"
        until(lambda s=session: server.session(s)["status"] == "idle", f"rest in session {session}")
        server.provider.add(say(f"Fine {session}."), marker=f"next {session}")
        ended = server.ended(server.start_turn(session, f"next {session}"))
        assert ended["status"] == "completed", ended["error"]
        after = server.messages(session)
        assert after[-1]["text"] == f"Fine {session}."
        said = [message["text"] for message in before["history"] if message["role"] == "user"]
        assert [message["text"] for message in after if message["role"] == "user"][: len(said)] == said
