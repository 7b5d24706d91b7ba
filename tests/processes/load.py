"""Users at work: conversations that start turns over all routes, queue more, cancel, answer and decide."""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection

from tests.polling import PATIENT
from tests.processes.deployment import Deployment, Slot
from tests.processes.followers import LOST, RunFollower, SessionFollower, open_socket
from tests.processes.server import Data
from tests.processes.turns import KINDS, text_of

BUSY = ("queued", "running")


@dataclass
class Figures:
    """What happened, to be printed."""

    faults: Counter = field(default_factory=Counter)  # by kind and part
    outages: list = field(default_factory=list)  # seconds from each fault until its part was there again
    answers: Counter = field(default_factory=Counter)  # that had to be asked for again, by status
    cuts: Counter = field(default_factory=Counter)  # of connections, by error
    closes: Counter = field(default_factory=Counter)  # of sockets by the server, by code
    accepting: list = field(default_factory=list)  # seconds from the first try to the acceptance of a message
    cancels: Counter = field(default_factory=Counter)  # by route
    decisions: Counter = field(default_factory=Counter)
    reconnects: int = 0
    events: int = 0  # that followers have got


class Client:
    """One user, on whichever web process there is."""

    def __init__(self, deployment: Deployment, token: str, chance: random.Random, figures: Figures) -> None:
        self.chance = chance
        self.figures = figures
        self._deployment = deployment
        self._headers = {"Authorization": f"Bearer {token}"}
        self.reopen()

    def reopen(self) -> None:
        """Begin with no connections."""
        self.http = httpx.AsyncClient(headers=self._headers, timeout=10)

    async def web(self) -> Slot:
        """A web process that seems to be there."""
        async with asyncio.timeout(PATIENT):
            while not (ready := self._deployment.ready_webs()):  # noqa: ASYNC110 (any of two)
                await asyncio.sleep(0.05)
        return self.chance.choice(ready)

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask until there is an answer that is not about the server's trouble."""
        deadline = time.monotonic() + PATIENT
        while True:
            url = f"{(await self.web()).address}api/{path}"
            try:
                answer = await self.http.request(method, url, **options)
            except httpx.TransportError as error:
                self.figures.cuts[type(error).__name__] += 1
                what = repr(error)
            else:
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
                self.figures.answers[answer.status_code] += 1
                what = answer.text
            assert time.monotonic() < deadline, f"{method} {path} got no answer, at last {what}"
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    async def get(self, path: str) -> Any:
        return (await self.ask("GET", path)).raise_for_status().json()

    async def pages(self, path: str) -> list[Data]:
        """All results of a list."""
        found: list[Data] = []
        while path:
            page = await self.get(path)
            found += page["results"]
            path = page["next"] and page["next"].split("/api/", 1)[1]
        return found

    async def log(self, run: str) -> list[Data]:
        """All events of a run."""
        found: list[Data] = []
        while True:
            options = {
                "params": {"after": len(found), "limit": 1000},
                "headers": {"Accept": "application/json"},
            }
            page = (await self.ask("GET", f"runs/{run}/events/", **options)).raise_for_status().json()
            found += page["events"]
            if page["done"] or not page["events"]:
                return found

    @asynccontextmanager
    async def socket(self, session: str, query: str = "") -> AsyncIterator[ClientConnection]:
        async with open_socket((await self.web()).address, session, query, self._headers) as socket:
            yield socket

    async def say(self, session: str, frame: Data) -> Data:
        """Send a frame on a socket until it is answered; the response or the error."""
        deadline = time.monotonic() + PATIENT
        while True:
            try:
                async with asyncio.timeout(15), self.socket(session) as socket:
                    await socket.send(json.dumps(frame))
                    async for text in socket:
                        told = json.loads(text)
                        if told.get("request_id") != frame["request_id"]:
                            continue
                        if told.get("code") not in ("unavailable", "throttled", "internal"):
                            return told
                        self.figures.answers[told["code"]] += 1
                        break
            except LOST as error:
                self.figures.cuts[type(error).__name__] += 1
            assert time.monotonic() < deadline, f"{frame} got no answer"
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))


class Conversation:
    """One session, what was asked of it, and who follows it."""

    def __init__(self, client: Client, agent: str, seed: str) -> None:
        self.client = client
        self.agent = agent
        self.chance = random.Random(seed)
        self.id = ""
        self.accepted: dict[str, str] = {}  # text by run, of every message that was
        self.refused: list[str] = []  # texts of those that were not
        self.acknowledged: set[str] = set()  # runs of which an unsettled or successful cancel was seen
        self.again: Counter[str] = Counter()  # by text, how often a user had it done again
        self.followers: list[SessionFollower | RunFollower] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.revision = 0
        self.wrong: list[str] = []
        self.routes: Counter[str] = Counter()

    async def open(self) -> None:
        answer = await self.client.ask("POST", "sessions/", json={"agent": self.agent})
        self.id = answer.raise_for_status().json()["id"]
        first = await self.start("rest", "enqueue")
        for _ in range(2):
            self.follow(SessionFollower(self.client, self.id, first))

    def follow(self, follower: SessionFollower | RunFollower) -> None:
        self.followers.append(follower)
        self.tasks.append(asyncio.create_task(follower.follow(), name=f"follower of {self.id}"))

    async def live(self, stopped: asyncio.Event) -> None:
        """Be used until told to stop."""
        while not stopped.is_set():
            await self.start(self._route(), self.chance.choice(["enqueue", "interrupt", "reject"]))
            for _ in range(self.chance.choice([0, 0, 0, 1, 2])):
                await asyncio.sleep(self.chance.uniform(0, 0.5))
                await self.start(self._route(), self.chance.choice(["enqueue", "enqueue", "interrupt"]))
            if self.chance.random() < 0.4:
                await asyncio.sleep(self.chance.uniform(0, 1.5))
                await self.cancel()
            await self.rest(stopped, seconds=15)

    def _route(self) -> str:
        return self.chance.choice(["rest", "stream", "socket"])

    async def shown(self) -> Data:
        """The session as it is now; its revision never goes back."""
        shown = await self.client.get(f"sessions/{self.id}/")
        if shown["cancellation_revision"] < self.revision:
            self.wrong.append(f"the revision went from {self.revision} to {shown['cancellation_revision']}")
        self.revision = shown["cancellation_revision"]
        return shown

    # Turns

    async def start(self, route: str, multitask: str) -> str | None:
        """Start a turn, whatever it takes; its run, or None when it was refused."""
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        key = f"{self.chance.randrange(2**40):010x}"
        text, began = text_of(kind, key), time.monotonic()
        run = await getattr(self, f"_start_by_{route}")(text, multitask)
        if run is None:
            self.refused.append(text)
            return None
        self.client.figures.accepting.append(time.monotonic() - began)
        self.accepted[run] = text
        self.routes[route] += 1
        if route != "stream" and self.chance.random() < 0.3:
            self.follow(RunFollower(self.client, run))
        return run

    async def _start_by_rest(self, text: str, multitask: str) -> str | None:
        answer = await self.client.ask(
            "POST",
            f"sessions/{self.id}/runs/",
            json={"input": text, "multitask": multitask},
            headers={"Idempotency-Key": str(uuid4())},
        )
        return self._run_in(answer.status_code, answer.json())

    async def _start_by_socket(self, text: str, multitask: str) -> str | None:
        frame = {"type": "turn.start", "request_id": str(uuid4()), "input": text, "multitask": multitask}
        told = await self.client.say(self.id, frame)
        if told["type"] == "response":
            return told["result"]["id"]
        return self._run_in(409 if told["code"] == "run_active" else 400, told)

    async def _start_by_stream(self, text: str, multitask: str) -> str | None:
        """The request that starts the run streams it, too, until it is cut; then another stream goes on."""
        body = {
            "input": text,
            "multitask": multitask,
            "on_disconnect": self.chance.choice(["continue", "continue", "cancel"]),
        }
        headers = {"Accept": "text/event-stream", "Idempotency-Key": str(uuid4())}
        deadline = time.monotonic() + PATIENT
        while True:
            url = f"{(await self.client.web()).address}api/sessions/{self.id}/runs/"
            follower = None
            try:
                async with self.client.http.stream("POST", url, json=body, headers=headers) as answer:
                    if answer.status_code == 200:
                        follower = RunFollower(self.client, answer.headers["Location"].split("/")[-2])
                        await follower.read(answer)
                    elif answer.status_code < 500 and answer.status_code != 429:
                        return self._run_in(answer.status_code, json.loads(await answer.aread()))
                    else:
                        self.client.figures.answers[answer.status_code] += 1
            except httpx.TransportError as error:
                self.client.figures.cuts[type(error).__name__] += 1
            if follower is not None:
                self.follow(follower)
                return follower.run
            assert time.monotonic() < deadline, "no stream was begun"
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    def _run_in(self, status: int, answer: Any) -> str | None:
        if status == 202:
            return answer["id"]
        if status != 409:
            self.wrong.append(f"a turn was answered with {status} {answer}")
        return None

    # Cancels

    async def cancel(self) -> None:
        """Cancel what there is, over one of the routes."""
        route = self.chance.choice(["run", "session", "socket"])
        if route == "socket":
            frame = {"type": "agent.cancel", "request_id": str(uuid4()), "session_id": self.id}
            told = await self.client.say(self.id, frame)
            cancellation = told.get("result") or told.get("cancellation")
        else:
            latest = self.chance.choice(list(self.accepted)[-2:])
            path = f"sessions/{self.id}" if route == "session" else f"runs/{latest}"
            wait = self.chance.choice([0, 0, 2])
            answer = await self.client.ask("POST", f"{path}/cancel/", json={"wait": wait})
            cancellation = answer.raise_for_status().json()
        self.client.figures.cancels[route] += 1
        if cancellation is None:
            self.wrong.append(f"a cancel was answered with {told}")
        elif cancellation["outcome"] != "already_finished":
            self.acknowledged.add(cancellation["run"])

    # Rest

    async def rest(self, stopped: asyncio.Event, seconds: float) -> bool:
        """See the session to its rest, for a while; whether it got there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shown = await self.shown()
            match shown["status"]:
                case "idle":
                    return True
                case "waiting":
                    await self._reply(shown["active_run"]["id"])
                case "interrupted":
                    if not stopped.is_set() and self.chance.random() < 0.3:
                        return False  # the next message decides
                    await self._decide()
                case _:
                    await asyncio.sleep(self.chance.uniform(0.1, 0.5))
        return False

    async def _reply(self, run: str) -> None:
        if self.chance.random() < 0.2:
            await self.cancel()
            return
        asked = [event for event in await self.client.log(run) if event["type"] == "run.waiting"]
        answers = {question["id"]: "Yes" for question in asked[-1]["data"]["questions"]} if asked else {}
        answer = await self.client.ask("POST", f"runs/{run}/answer/", json={"answers": answers})
        if answer.status_code not in (200, 409):
            self.wrong.append(f"an answer was answered with {answer.status_code} {answer.text}")
        await asyncio.sleep(0.2)

    async def _decide(self) -> None:
        """Resume, retry or dismiss; somebody else may have been first."""
        open_runs = [
            run
            for run in await self.client.pages(f"sessions/{self.id}/runs/")
            if run["status"] == "interrupted" and run["resolution"] is None
        ]
        if not open_runs:
            return
        way = self.chance.choice(["resume", "retry", "dismiss"])
        answer = await self.client.ask("POST", f"runs/{open_runs[0]['id']}/{way}/")
        if answer.status_code not in (200, 202, 409):
            self.wrong.append(f"{way} was answered with {answer.status_code} {answer.text}")
        self.client.figures.decisions[way] += 1
        if way != "dismiss":
            self.again[await self._text_of(open_runs[0]["id"])] += 1

    async def _text_of(self, run: str) -> str:
        return (await self.client.log(run))[0]["data"]["input"]

    # The end

    async def close(self) -> None:
        """Have every follower leave."""
        for follower in self.followers:
            follower.over = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def by_text(runs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Runs by the words that they answer."""
    found = defaultdict(list)
    for run, text in runs:
        found[text].append(run)
    return found
