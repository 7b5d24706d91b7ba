"""The real server, killed at random moments and started again: nothing accepted is lost, nothing is stuck.

``KILL_ROUNDS`` (default 2) is how often it is ended, with the choices of ``KILL_SEED``. Each round starts
turns of every kind, ends the server at a random moment, by SIGTERM in one round of four (the second) and else
by kill -9, and looks at everything over REST after the restart.
"""

import os
import random
import time
from datetime import UTC, datetime

import pytest

from tests.chance import seed
from tests.fakes import Marks
from tests.polling import PATIENT, until
from tests.processes.server import DRAIN, Server
from tests.provider import Hold, Round, call, numbered, provider_process, say

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))

# Seconds from a restart to the end of what the dead process executed.
SOON = 2 * (3 if os.environ.get("CI") else 1)

TERMINAL = ("completed", "failed", "cancelled", "interrupted")
KINDS = ("streaming", "blocking", "awaiting", "asking", "queueing", "new", "stopping")


@pytest.fixture(scope="module")
def provider():
    with provider_process() as remote:
        yield remote


@pytest.fixture
def server(provider, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    server = Server(data, provider)
    server.start()
    yield server
    server.close()


def begin(server, kind, key):
    """Start a turn of this kind in a session of its own: the session, and its runs."""
    provider, session = server.provider, server.open_session()
    match kind:
        case "streaming":
            provider.add(Round(numbered(100, 0.02), Hold(key)), marker=key)
        case "blocking" | "stopping":
            provider.add(call("mark", x=f"done {key}"), call("held_sync", mark=f"go {key}"), marker=key)
        case "awaiting":
            provider.add(call("held_async", mark=f"go {key}"), marker=key)
        case "asking":
            provider.add(call("ask", question="Really?"), say("So be it."), marker=key)
        case "queueing":
            provider.add(Round(numbered(100, 0.02), Hold(key)), marker=key)
        case "new":
            provider.add(say("At once.", delay=0.1), marker=key)
    runs = [server.start_turn(session, f"Please {kind} {key}")]
    if kind == "queueing":
        runs += [server.start_turn(session, f"Then {n} {key[::-1]}", multitask="enqueue") for n in (1, 2)]
    return session, runs


def settle(server, session, chance):
    """Come to a decision about every turn of the session; the ways that were taken."""
    ways = []
    while True:
        shown = until(
            lambda: (s := server.session(session))["status"] in ("idle", "interrupted", "waiting") and s,
            f"rest in session {session}",
        )
        assert shown["cancellation_pending"] is False
        if shown["status"] == "idle":
            return ways
        if shown["status"] == "waiting":
            run = shown["active_run"]["id"]
            asked = next(e for e in reversed(server.events(run)) if e["type"] == "run.waiting")
            answers = {question["id"]: "Yes" for question in asked["data"]["questions"]}
            server.post(f"runs/{run}/answer/", answers=answers)
            until(lambda run=run: server.run(run)["status"] != "waiting", "taking the answer")
            ways.append("answer")
            continue
        latest = server.get(f"sessions/{session}/history/")["run"]["id"]
        way = chance.choice(["resume", "retry", "dismiss", "stop"])
        if way == "stop":
            stopped = server.post(f"runs/{latest}/cancel/")
            assert stopped["outcome"] == "already_finished", "stop on a dead turn is a success"
            way = "dismiss"
        server.post(f"runs/{latest}/{way}/")
        ways.append(way)


def check_log(server, run_id):
    log = server.events(run_id)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    ends = [event for event in log if event["type"] in {f"run.{end}" for end in TERMINAL}]
    assert len(ends) == 1
    assert ends[0] is log[-1]
    assert ends[0]["type"] == f"run.{server.run(run_id)['status']}"
    assert ends[0]["data"]["statistics"] == server.run(run_id)["statistics"]


def check_next(server, session, key):
    """NEXT ok, at the provider that takes only well-formed histories."""
    server.provider.add(say(f"Fine {key}."), marker=f"next {key}")
    ended = server.ended(server.start_turn(session, f"next {key}"))
    assert ended["status"] == "completed", ended["error"]
    assert server.messages(session)[-1]["text"] == f"Fine {key}."


@pytest.mark.timeout(max(300, 60 * ROUNDS))
def test_nothing_is_lost_and_nothing_is_stuck_after_a_kill(server):
    chance = random.Random(seed("KILL_SEED"))
    slowest, leaving, ways, ends = 0.0, [], [], []
    for number in range(ROUNDS):
        keys = {kind: f"{chance.randrange(2**40):010x}" for kind in KINDS}
        turns = {kind: begin(server, kind, keys[kind]) for kind in chance.sample(KINDS, len(KINDS))}
        time.sleep(chance.uniform(0, 1.5))
        server.post(f"runs/{turns['stopping'][1][0]}/cancel/")
        if number % 4 == 1:
            code, seconds = server.leave()
            assert code == 0
            leaving.append(seconds)
        else:
            time.sleep(chance.uniform(0, 0.6))
            server.kill()
        server.start()
        restarted = datetime.now(UTC)

        for kind, (session, runs) in turns.items():
            first = until(
                lambda run=runs[0]: (r := server.run(run))["status"] not in ("queued", "running") and r,
                f"the end of the {kind} turn",
                PATIENT if kind == "new" else 15,
            )
            if first["status"] in ("interrupted", "cancelled"):
                ended = datetime.fromisoformat(first["finished_at"])
                slowest = max(slowest, (ended - restarted).total_seconds())
            ends.append(first["status"])
            shown = server.session(session)
            assert shown["cancellation_pending"] is False, kind
            asked = [m["text"] for m in server.messages(session) if m["role"] == "user"]
            queued = [turn["input"] for turn in shown["queued"]]
            assert asked[0] == f"Please {kind} {keys[kind]}"
            assert len(set(asked + queued)) == len(runs), (kind, asked, queued)
            if kind == "stopping":
                assert first["status"] == "cancelled"
            if kind in ("streaming", "queueing", "blocking", "awaiting"):
                assert first["status"] == "interrupted", kind
        for kind, (session, runs) in turns.items():
            server.provider.open(keys[kind])
            Marks(server.marks).write(f"go {keys[kind]}")
            decided = settle(server, session, chance)
            ways += decided
            for run in server.get(f"sessions/{session}/runs/")["results"]:
                check_log(server, run["id"])
            if kind == "blocking" and "retry" not in decided:
                done = server.marks.read_text().splitlines().count(f"done {keys[kind]}")
                assert done <= 1, "a tool that had finished ran again"
            expected = len(runs)
            asked = [m for m in server.messages(session) if m["role"] == "user"]
            assert len(asked) == expected, kind
            check_next(server, session, keys[kind])
    assert all(seconds < DRAIN + 2 for seconds in leaving), leaving
    assert slowest < SOON
    print(f"{ROUNDS} rounds; ends {tally(ends)}; decisions {tally(ways)}")
    print(f"all ended {slowest:.1f} s after a restart; leaving took {[round(one, 1) for one in leaving]} s")


def tally(words):
    return {word: words.count(word) for word in sorted(set(words))}


@pytest.mark.parametrize("database", ["checkpoints", "turnkeeper"])
def test_an_older_copy_of_one_file_breaks_nothing(server, database):
    """A backup was put back, and the two files do not belong together any more."""
    provider = server.provider
    session = server.open_session()
    provider.add(call("mark", x="old"), say("Old answer."), marker="old question")
    server.ended(server.start_turn(session, "old question"))
    server.leave()
    server.copy("backup")
    server.start()
    key = f"new-{database}"
    provider.add(call("mark", x=key), Round(numbered(20), Hold(key)), marker=key)
    run = server.start_turn(session, key)
    until(lambda: provider.gate(key)["arrivals"], "the second turn's answer")
    server.kill()

    server.put_back("backup", database)
    server.start()
    provider.open(key)

    if database == "checkpoints":
        assert server.ended(run)["status"] == "interrupted"
    else:
        assert server.api.get(f"runs/{run}/").status_code == 404
    settle(server, session, random.Random(1))
    assert server.session(session)["status"] == "idle"
    asked = [m["text"] for m in server.messages(session) if m["role"] == "user"]
    assert asked[0] == "old question"
    if database == "checkpoints":
        assert asked == ["old question", key]
    check_next(server, session, key)
    assert server.session(session)["cancellation_pending"] is False


def test_commands_end_as_soon_as_their_work_is_done(server):
    session = server.open_session()
    server.provider.add(call("slow_async", seconds=60), marker="to be cancelled")
    run = server.start_turn(session, "to be cancelled")
    until(lambda: server.run(run)["status"] == "running", "the run")

    began = time.monotonic()
    nothing = server.command("check")
    start_up = time.monotonic() - began
    for arguments, said in (
        (("reconcile_runs",), "workers lost: 0, runs interrupted: 0"),
        (("cancel_run", run, "--reason", "by hand"), "Cancel accepted"),
    ):
        began = time.monotonic()
        done = server.command(*arguments)
        assert (done.returncode, nothing.returncode) == (0, 0), done.stderr
        assert done.stdout.startswith(said)
        assert time.monotonic() - began < start_up + 8

    ended = server.ended(run)
    assert ended["status"] == "cancelled"
    assert ended["cancellation"]["source"] == "operator"
    assert ended["cancellation"]["outcome"] == "cancelled"
    assert ended["cancellation"]["reason"] == "by hand"
