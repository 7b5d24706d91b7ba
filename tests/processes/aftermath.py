"""What must be true when everything has come to rest, whatever broke before.

Read over REST, as any client could; what is left over is looked for in PostgreSQL, in ``/metrics`` and in
``/proc``.
"""

import asyncio
import re
import time
from typing import Any

import httpx

from runs.log.transcript import closing_note
from runs.states import RunStatus
from tests.processes.deployment import Deployment, open_files, threads
from tests.processes.followers import ENDS, RunFollower, SessionFollower, print_of
from tests.processes.load import Conversation, by_text
from tests.processes.server import Data
from tests.provider import ScriptedProvider

# A process's pools: Django's, that of the checkpoints, that of the queue and the one that listens to it.
CONNECTIONS = 12 + 10 + 4 + 1
# What may be open beyond what was open before: connections that pools have made meanwhile.
SLACK = 12


class Findings(list):
    """What is not as it must be, in words."""

    def check(self, holds: object, *words: object) -> None:
        if not holds:
            self.append(" ".join(map(str, words)))


class Aftermath:
    """Looks at one conversation that has come to rest."""

    def __init__(self, conversation: Conversation, findings: Findings) -> None:
        self.of = conversation
        self.client = conversation.client
        self.findings = findings
        self.runs: list[Data] = []  # by position
        self.logs: dict[str, list[Data]] = {}  # by run

    async def look(self) -> None:
        """Read it and check it."""
        runs = await self.client.pages(f"sessions/{self.of.id}/runs/")
        for run in runs:
            self._check(run["position"] is not None, "run", run["id"], "ended without a position", run)
        self.runs = sorted(runs, key=lambda run: run["position"] or 0)
        for run in runs:
            self.logs[run["id"]] = await self.client.log(run["id"])
            self._check_run(run, self.logs[run["id"]])
        for wrong in self.of.wrong:
            self._check(False, wrong)
        await self._check_messages()
        await self._check_session()
        self._check_cancels()

    def _check(self, holds: object, *words: object) -> None:
        self.findings.check(holds, "session", self.of.id, self.of.agent, *words)

    def _check_run(self, run: Data, log: list[Data]) -> None:
        name = f"run {run['id']} {run['status']}"
        self._check(f"run.{run['status']}" in ENDS, name, "has not ended")
        self._check(
            [event["seq"] for event in log] == list(range(1, run["last_seq"] + 1)),
            name,
            "has holes in its log",
        )
        ends = [event for event in log if event["type"] in ENDS]
        if not ends or len(ends) > 1 or ends[0] is not log[-1]:
            self._check(False, name, "has not one end:", [event["type"] for event in log[-5:]], len(ends))
            return
        self._check(ends[0]["type"] == f"run.{run['status']}", name, "ended as", ends[0]["type"])
        self._check(ends[0]["data"]["statistics"] == run["statistics"], name, "tells other numbers")
        started = sum(event["type"] == "run.started" for event in log)
        self._check(started <= 1, name, "started", started, "times")

    async def _check_messages(self) -> None:
        """Every accepted message is there, once; none that was refused is."""
        said = await self.client.get(f"sessions/{self.of.id}/history/")
        asked = [message["text"] for message in said["messages"] if message["role"] == "user"]
        for run, text in self.of.accepted.items():
            self._check(run in self.logs, "accepted run", run, "is gone")
            self._check(
                asked.count(text) == 1, "message", text, "is", asked.count(text), "times in the history"
            )
        self._check(len(asked) == len(self.of.accepted), "has messages nobody sent or that were refused")
        new = [(run["id"], self.logs[run["id"]][0]["data"]["input"]) for run in self._first_runs()]
        for text, runs in by_text(new).items():
            self._check(len(runs) == 1, "message", text, "became the runs", runs)

    def _first_runs(self) -> list[Data]:
        return [run for run in self.runs if run["resumes"] is None and run["retries"] is None]

    async def _check_session(self) -> None:
        shown = await self.of.shown()
        self._check(shown["status"] == "idle", "is", shown["status"])
        self._check(shown["cancellation_pending"] is False, "has a cancel pending")
        self._check(shown["cancellation_revision"] % 2 == 0, "has revision", shown["cancellation_revision"])
        runs = self.runs
        total = sum(run["statistics"]["llm_calls"] for run in runs)
        self._check(shown["statistics"]["llm_calls"] == total, "counts other LLM calls than its runs")
        self._check(shown["statistics"]["runs"] == len(runs), "counts other runs")

    def _check_cancels(self) -> None:
        status = {run["id"]: run["status"] for run in self.runs}
        for run in self.of.acknowledged:
            self._check(status.get(run) == "cancelled", "run", run, "was cancelled and is", status.get(run))

    # Followers

    async def check_followers(self, seconds: float) -> None:
        """Each has the whole stream once it had time to catch up."""
        stream = [print_of(event) for run in self.runs for event in self.logs[run["id"]]]
        whole = {None: stream} | {run: [print_of(event) for event in log] for run, log in self.logs.items()}
        deadline = time.monotonic() + seconds
        for follower in self.of.followers:
            expected = whole[follower.run if isinstance(follower, RunFollower) else None]
            while len(follower.seen) < len(expected) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            kind = type(follower).__name__
            self._check(
                follower.seen == expected, kind, "got", len(follower.seen), "of", len(expected), "events",
                _first_difference(follower.seen, expected),
            )  # fmt: skip
            for wrong in follower.wrong:
                self._check(False, kind, wrong)
            if isinstance(follower, SessionFollower):
                self._check(not follower.pending, kind, "was left with a pending cancel")
                self._check(follower.revision == self.of.revision, kind, "was left at", follower.revision)

    async def check_unchanged(self) -> None:
        """Nothing of an ended run has changed since it was looked at."""
        for run in self.runs:
            log = await self.client.log(run["id"])
            self._check(log == self.logs[run["id"]], "run", run["id"], "went on after its end")
            now = await self.client.get(f"runs/{run['id']}/")
            self._check(now["statistics"] == run["statistics"], "run", run["id"], "changed its numbers")
            self._check(now["status"] == run["status"], "run", run["id"], "changed its status")

    # What the model gets

    async def check_next(self, provider: ScriptedProvider) -> None:
        """The next message is taken, and the model gets the history as it is shown."""
        shown = (await self.client.get(f"sessions/{self.of.id}/history/"))["messages"]
        text = f"quick next{self.of.id}"
        answer = await self.client.ask("POST", f"sessions/{self.of.id}/runs/", json={"input": text})
        run = answer.raise_for_status().json()
        deadline = time.monotonic() + 60
        while run["status"] in ("queued", "running") and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            run = await self.client.get(f"runs/{run['id']}/")
        self._check(run["status"] == "completed", "the next turn ended as", run["status"], run["error"])
        calls = [call for call in provider.calls if call.messages[-1]["content"] == text]
        self._check(len(calls) == 1, "the next turn made", len(calls), "calls")
        for call in calls[:1]:
            got, expected = _as_sent(call.messages[:-1]), _as_shown(shown)
            self._check(got == expected, "the model gets another history:", _first_difference(got, expected))


# Put behind a turn that was interrupted and dismissed when the next one begins: its log had ended before.
_NOTE = ("assistant", closing_note(RunStatus.INTERRUPTED, is_answered=False))


def _as_sent(messages: list[Data]) -> list[tuple[str, str]]:
    found = []
    for message in messages:
        if message["role"] == "tool":
            found.append(("tool", message["tool_call_id"]))
        else:
            found.append((message["role"], message.get("content") or ""))
            found += [("call", call["id"]) for call in message.get("tool_calls") or ()]
    return [one for one in found if one != _NOTE]


def _as_shown(messages: list[Data]) -> list[tuple[str, str]]:
    found = []
    for message in messages:
        found.append((message["role"], message["text"]))
        found += [("call", call["id"]) for call in message["tool_calls"]]
        found += [("tool", call["id"]) for call in message["tool_calls"]]
    return [one for one in found if one != _NOTE]


def _first_difference(got: list[Any], expected: list[Any]) -> str:
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            return f"at {number}: {one} instead of {other}"
    return f"at {min(len(got), len(expected))}: the end of one"


class Leftovers:
    """What the living processes hold, before and after."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._before = self._count()

    def _count(self) -> dict[str, tuple[int, int]]:
        return {slot.title: (open_files(slot.pid), threads(slot.pid)) for slot in self._deployment.slots}

    async def check(self, findings: Findings, seconds: float) -> None:
        """Nothing is held any more that was not held before; given time to let go."""
        deadline = time.monotonic() + seconds
        while True:
            found = Findings()
            await self._check(found)
            if not found or time.monotonic() > deadline:
                findings += found
                return
            await asyncio.sleep(0.3)

    async def _check(self, found: Findings) -> None:
        after = self._count()
        for name, (files, living) in self._before.items():
            more_files, more_threads = after.get(name, (files, living))
            found.check(more_files <= files + SLACK, name, "had", files, "files open, now", more_files)
            found.check(more_threads <= living + SLACK, name, "had", living, "threads, now", more_threads)
        await self._check_database(found)
        async with httpx.AsyncClient(timeout=10) as http:
            for slot in self._deployment.webs:
                counted = (await http.get(f"{slot.address}metrics")).text
                for gauge in ("streams", "sockets", "followers", "executions", "stragglers"):
                    (value,) = re.findall(rf"^turnkeeper_{gauge} (\S+)$", counted, re.MULTILINE)
                    found.check(float(value) == 0, slot.title, "has", value, gauge)

    async def _check_database(self, found: Findings) -> None:
        living = {slot.title for slot in self._deployment.slots}
        rows = await self._deployment.rows(
            "SELECT application_name, count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%'),"
            " max(now() - xact_start) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND application_name <> 'test' GROUP BY 1"
        )
        for name, count, in_transaction, oldest in rows:
            found.check(name in living, "connections of", name, "which is gone:", count)
            found.check(count <= CONNECTIONS, name, "has", count, "connections")
            found.check(
                in_transaction == 0, name, "is idle in", in_transaction, "transactions, since", oldest
            )
        jobs = await self._deployment.rows("SELECT status::text, count(*) FROM procrastinate_jobs GROUP BY 1")
        found.check(not jobs, "jobs are left:", jobs)
        pids = await self._deployment.rows(
            "SELECT pid, active_runs, stragglers FROM runs_worker ORDER BY pid"
        )
        expected = sorted((slot.pid, 0, 0) for slot in self._deployment.workers)
        found.check(pids == expected, "workers are", pids, "instead of", expected)
        left = await self._deployment.rows(
            "SELECT (SELECT count(*) FROM runs_run WHERE status IN ('queued', 'running', 'waiting')),"
            " (SELECT count(*) FROM runs_cancellation WHERE settled_at IS NULL),"
            " (SELECT count(*) FROM runs_toolcall WHERE status = 'running')"
        )
        found.check(left == [(0, 0, 0)], "active runs, pending cancels, running tools:", left)
