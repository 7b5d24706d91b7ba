"""Records a data folder with this version, for the tests of later ones.

``python -m tests.processes.recording FILE`` makes FILE an archive of the folder. ``answers.json`` in it holds
what the server told over REST.
"""

import json
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.polling import until
from tests.processes.server import Server
from tests.provider import Disconnect, Hold, Round, call, numbered, provider_process, say

ANSWERS = "answers.json"


def told(server: Server) -> dict[str, Any]:
    """What the server tells of each session: its history, its runs and their logs."""
    found = {}
    for origin in ("chat", "api"):
        for session in server.get(f"sessions/?origin={origin}")["results"]:
            runs = server.get(f"sessions/{session['id']}/runs/")["results"]
            found[session["id"]] = {
                "session": server.session(session["id"]),
                "history": server.get(f"sessions/{session['id']}/history/")["messages"],
                "runs": runs,
                "events": {run["id"]: server.events(run["id"]) for run in runs},
            }
    return found


def live_through(server: Server) -> None:
    """A session for each way that a turn can go; the interrupted ones are decided about later."""
    provider = server.provider

    def start(text: str, *rounds: Round, session: str | None = None, **options: Any) -> tuple[str, str]:
        provider.add(*rounds, marker=text)
        session = session or server.open_session()
        return session, server.start_turn(session, text, **options)

    _, run = start("a tool and an answer", call("mark", x="once"), say("It is *marked*."))
    server.ended(run)

    _, run = start("stopped while it speaks", Round(numbered(20), Hold("speaking")))
    until(lambda: provider.gate("speaking")["arrivals"], "the words")
    server.post(f"runs/{run}/cancel/", reason="Enough.", wait=30)

    _, run = start("stopped while a tool works", call("slow_sync", seconds=3))
    until(lambda: "tool.started" in types(server, run), "the tool")
    server.post(f"runs/{run}/cancel/", wait=30)

    session, run = start("broken off", Round(numbered(8), Disconnect()))
    server.ended(run)
    provider.add(say("Now it works."), marker="broken off")
    server.ended(server.post(f"runs/{run}/retry/")["id"])

    _, run = start("a question", call("ask", question="Really?"), say("So be it."))
    until(lambda: server.run(run)["status"] == "waiting", "the question")

    brought = [
        {"role": "user", "content": "What came before"},
        {"role": "assistant", "content": "Was brought along."},
        {"role": "user", "content": "by another protocol"},
    ]
    provider.add(say("And goes on here."), marker="by another protocol")
    server.api.post(
        f"{str(server.api.base_url).removesuffix('api/')}v1/chat/completions",
        json={"model": "assistant", "messages": brought},
    ).raise_for_status()

    for name in ("lost and resumed", "lost and undecided"):
        gate = name.replace(" ", "-")
        session, run = start(name, call("mark", x=name), Round(numbered(20), Hold(gate)))
        until(partial(arrivals, server, gate), name)
    start("behind the lost one", session=session, multitask="enqueue")


def arrivals(server: Server, gate: str) -> int:
    return int(server.provider.gate(gate)["arrivals"])


def is_at_rest(server: Server, run: str) -> bool:
    return bool(server.run(run)["status"] != "running")


def types(server: Server, run: str) -> list[str]:
    return [event["type"] for event in server.events(run)]


def record(file: Path) -> None:
    """Live through it all, with a kill -9 and a restart, and pack what is left."""
    with tempfile.TemporaryDirectory() as folder, provider_process() as provider:
        data = Path(folder, "data")
        data.mkdir()
        server = Server(data, provider)
        server.start()
        try:
            live_through(server)
            server.kill()
            server.start()
            lost = [run for session in told(server).values() for run in session["runs"]]
            for run in lost:
                until(partial(is_at_rest, server, run["id"]), "the end")
            resumed = next(run for run in lost if "lost and resumed" in str(server.events(run["id"])[0]))
            provider.open("lost-and-resumed")
            provider.add(say("Here it goes on."), marker="lost and resumed")
            server.ended(server.post(f"runs/{resumed['id']}/resume/")["id"])
            (data / ANSWERS).write_text(json.dumps(told(server), indent=1))
            server.leave()
        finally:
            server.close()
        with tarfile.open(file, "w:gz") as archive:
            for one in sorted(data.iterdir()):
                archive.add(one, one.name)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
