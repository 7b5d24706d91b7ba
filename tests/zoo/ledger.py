"""The ledger: what models and tools did, in a file of their own, whatever the engine knows of it.

Every entry is a moment at which a test can hold the one who writes it. The file is shared by threads and
processes. Only the standard library is used here, since a tool's process starts for each call.
"""

import asyncio
import fcntl
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

_POLL = 0.004


class Killed(BaseException):
    """The process of the writer is gone, as far as the test is concerned."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that a model or a tool did."""

    what: str  # llm.start, llm.chunk, llm.end, tool.start, tool.end
    name: str  # of the model or the tool
    number: int  # from 1, of the same name and kind
    call: str  # the id of the tool call; of a model "" or the user's words it was given
    word: str  # what the tool was asked to do
    thread: str
    at: float  # time.time()

    @property
    def point(self) -> str:
        """Names the moment; the same in each life of a graph."""
        return f"{self.what} {self.name} {self.number}"


class Ledger:
    """A folder with the ledger, and with a file that names the point to hold at.

    ``kill`` ends what this object was given to, which no entry gets past any more.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "ledger"
        self._hold = folder / "hold"
        self._killed = threading.Event()

    # Writing

    def write(self, what: str, name: str, call: str = "", word: str = "") -> None:
        """Append an entry. In threads: wait while it is held."""
        entry = self._append(what, name, call, word)
        while self._is_held(entry):
            time.sleep(_POLL)
        self._die_if_killed()

    async def awrite(self, what: str, name: str, call: str = "", word: str = "") -> None:
        """The same on an event loop."""
        entry = self._append(what, name, call, word)
        while self._is_held(entry):  # noqa: ASYNC110 (by whom it is released, is in another process)
            await asyncio.sleep(_POLL)
        self._die_if_killed()

    def _append(self, what: str, name: str, call: str, word: str) -> Entry:
        self._die_if_killed()
        with self._file.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = 1 + sum(
                (entry["what"], entry["name"]) == (what, name) for entry in map(json.loads, file)
            )
            entry = Entry(what, name, number, call, word, threading.current_thread().name, time.time())
            file.write(json.dumps(asdict(entry)) + "\n")
        return entry

    def _is_held(self, entry: Entry) -> bool:
        try:
            return self._hold.read_text() == entry.point
        except FileNotFoundError:
            return False

    def _die_if_killed(self) -> None:
        if self._killed.is_set():
            raise Killed

    # Reading and directing

    def hold(self, point: str) -> None:
        """Whoever writes the entry of this point waits there until ``release``."""
        replacement = self.folder / "hold.new"
        replacement.write_text(point)
        replacement.rename(self._hold)

    def release(self) -> None:
        self._hold.unlink(missing_ok=True)

    def kill(self) -> "Ledger":
        """From now on, whoever holds this ledger writes nothing and gets no further. A new one goes on."""
        self._killed.set()
        self.release()
        return Ledger(self.folder)

    def entries(self) -> list[Entry]:
        if not self._file.exists():
            return []
        return [Entry(**json.loads(line)) for line in self._file.read_text().splitlines()]

    def count(self, chosen: Callable[[Entry], bool]) -> int:
        return sum(map(chosen, self.entries()))
