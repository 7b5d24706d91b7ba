"""Clients that follow over whichever web process there is, are cut off, and come back with their cursor."""

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

from tests.processes.server import Data

if TYPE_CHECKING:
    from tests.processes.load import Client

# Codes with which a server may close a socket: it is gone, it leaves, its database is away.
MAY_END_WITH = (1006, 1012, 1013)
# What it may answer to a follower: what was asked for; too many; that it leaves, or its database is away.
MAY_ANSWER = (200, 204, 429, 503)
ENDS = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")
# What a socket meets while servers come and go.
LOST = (OSError, TimeoutError, EOFError, ConnectionClosed, InvalidHandshake, InvalidMessage)


def print_of(event: Data) -> tuple[str, int, str, str]:
    """An Event in short: equal for equal ones."""
    whole = hashlib.sha1(json.dumps(event, sort_keys=True).encode()).hexdigest()
    return event["run"], event["seq"], event["type"], whole


class Follower:
    """What both kinds have in common: what they have seen, and how long they stay connected."""

    def __init__(self, client: "Client") -> None:
        self.client = client
        self.seen: list[tuple[str, int, str, str]] = []  # as print_of
        self.wrong: list[str] = []  # what should not have come, or not like that, in words
        self.calm = False  # it leaves by itself no more
        self.over = False
        self.last: tuple[str | None, int, str | None] = (None, 0, None)  # run, seq and type of the last event

    def take(self, event: Data) -> None:
        """Take the next event, if it is that."""
        run, seq, type = self.last
        here = event["run"], event["seq"], event["type"]
        if here[0] == run:
            fits = here[1] == seq + 1 and type not in ENDS
        else:
            fits = here[1] == 1 and (run is None or type in ENDS)
        if not fits:
            self.wrong.append(f"{here} came behind {self.last}")
        self.last = here
        self.seen.append(print_of(event))
        self.client.figures.events += 1

    def patience(self) -> float | None:
        """Seconds until it cuts the connection; None: never."""
        return None if self.calm else self.client.chance.uniform(0.5, 8)

    async def follow(self) -> None:
        """Until it is told that it is over."""
        while not self.over:
            try:
                await self.attend()
            except InvalidStatus as error:
                self._refused(error.response.status_code)
            except (*LOST, httpx.TransportError) as error:
                self.client.figures.cuts[type(error).__name__] += 1
            if not self.over:
                await asyncio.sleep(self.client.chance.uniform(0.05, 0.4))
                self.client.figures.reconnects += 1

    async def attend(self) -> None:
        """Be connected once."""
        raise NotImplementedError

    def _refused(self, status: int) -> None:
        self.client.figures.answers[status] += 1
        if status not in MAY_ANSWER:
            self.wrong.append(f"refused with {status}")


class SessionFollower(Follower):
    """A socket on a session, from its first event on."""

    def __init__(self, client: "Client", session: str, first_run: str | None) -> None:
        super().__init__(client)
        self.session = session
        self.revision = 0  # the highest that was told, with what it says
        self.pending = False
        self._last_known = (first_run, 0)

    async def attend(self) -> None:
        run, after = self.last[:2] if self.last[0] else self._last_known
        async with self.client.socket(self.session, f"?run={run}&after={after}") as socket:
            try:
                async with asyncio.timeout(self.patience()) as limit:
                    async for frame in socket:
                        self._read(json.loads(frame))
                        if self.calm:
                            limit.reschedule(None)
            except TimeoutError:
                if not self.calm and self.client.chance.random() < 0.5:
                    socket.transport.abort()
            except ConnectionClosed:
                self.client.figures.closes[socket.close_code] += 1
                if socket.close_code not in MAY_END_WITH:
                    self.wrong.append(f"closed with {socket.close_code} {socket.close_reason}")

    def _read(self, frame: Data) -> None:
        match frame["type"]:
            case "run.event":
                self.take(frame["event"])
            case "session.state_changed":
                shown = frame["session"]
                self._project(shown["cancellation_revision"], shown["cancellation_pending"])
            case "session.cancellation_changed":
                self._project(frame["cancellation_revision"], frame["cancellation_pending"])
            case "error":
                self.wrong.append(f"an error {frame}")

    def _project(self, revision: int, pending: bool) -> None:
        if revision == self.revision and pending != self.pending:
            self.wrong.append(f"revision {revision} with pending {pending} and {self.pending}")
        if revision > self.revision:
            self.revision, self.pending = revision, pending


class RunFollower(Follower):
    """An event stream of one run."""

    def __init__(self, client: "Client", run: str) -> None:
        super().__init__(client)
        self.run = run

    async def attend(self) -> None:
        url = f"{(await self.client.web()).address}api/runs/{self.run}/events/"
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.last[1])}
        async with self.client.http.stream("GET", url, headers=headers) as answer:
            if answer.status_code == 204:
                self.over = True
            elif answer.status_code == 200:
                await self.read(answer)
            else:
                self._refused(answer.status_code)

    async def read(self, answer: httpx.Response) -> None:
        """Take what a stream has, until its end or one's own."""
        try:
            async with asyncio.timeout(self.patience()) as limit:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        self.take(json.loads(line[6:]))
                    if self.calm:
                        limit.reschedule(None)
        except TimeoutError:
            return
        self.over = self.last[2] in ENDS


def open_socket(address: str, session: str, query: str, headers: dict[str, str]) -> connect:
    """A connection to a session's socket, to be used as a context manager."""
    url = f"{address.replace('http', 'ws', 1)}ws/sessions/{session}/{query}"
    return connect(url, additional_headers=headers, compression=None, open_timeout=10, close_timeout=1)
