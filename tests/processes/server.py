"""A server in a process of its own, its data in a folder, and a program that uses it over REST."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from tests import ROOT
from tests.fakes.tools import MARKS_VARIABLE
from tests.polling import PATIENT, until
from tests.provider import RemoteProvider

Data: TypeAlias = dict[str, Any]  # an object of JSON

DRAIN = 5


class Server:
    """``manage.py quickstart`` on one data folder, started, killed and started again."""

    COMMAND = "quickstart"
    START = PATIENT  # seconds

    def __init__(self, data: Path, provider: RemoteProvider, **environment: str) -> None:
        self.data = data
        self.marks = data.parent / "marks"
        self.provider = provider
        self._environment = {
            **os.environ,
            "DATA_DIR": str(data),
            "PORT": "0",
            "SECRET_KEY": "",
            "LOG_LEVEL": "WARNING",
            "AGENTS": json.dumps({"assistant": "tests.fakes:build_served"}),
            "OPENAI_BASE_URL": provider.base_url,
            MARKS_VARIABLE: str(self.marks),
            "RUNS_CANCEL_GRACE": "0.5",
            "RUNS_DRAIN_TIMEOUT": str(DRAIN),
            "RUNS_HEARTBEAT": "1",
            **environment,
        }

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._log = (self.data.parent / "log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", self.COMMAND],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        limit = threading.Timer(self.START, self.process.kill)
        limit.start()
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().rstrip("\n") for _ in range(4)]
        limit.cancel()
        told = {name: value for name, _, value in (line.partition(": ") for line in lines)}
        self.api = httpx.Client(
            base_url=told["Address"] + "api/",
            headers={"Authorization": f"Bearer {told['Token']}"},
            timeout=PATIENT,
        )

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self._gone()

    def leave(self) -> tuple[int, float]:
        """SIGTERM; the exit code and how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self._gone()
        return self.process.returncode, time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run another command of manage.py on the same data."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={
                **self._environment,
                "SECRET_KEY": "the key of a command, long enough to be taken for a real one",
                **environment,
            },
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENT,
        )

    def copy(self, name: str) -> None:
        """Keep a copy of the two files, which nobody has open now."""
        shutil.copytree(self.data, self.data.parent / name)

    def put_back(self, name: str, database: str) -> None:
        """Put the copy of one file back: "turnkeeper" or "checkpoints"."""
        for suffix in ("", "-wal", "-shm"):
            file = self.data / f"{database}.sqlite3{suffix}"
            file.unlink(missing_ok=True)
            kept = self.data.parent / name / file.name
            if kept.exists():
                shutil.copy(kept, file)

    def _gone(self) -> None:
        self.process.wait(PATIENT)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.api.close()
        self._log.close()

    # What a program asks for

    def get(self, path: str) -> Any:
        return self.api.get(path).raise_for_status().json()

    def post(self, path: str, **body: Any) -> Any:
        return self.api.post(path, json=body).raise_for_status().json()

    def open_session(self) -> str:
        return self.post("sessions/")["id"]

    def start_turn(self, session: str, text: str, **options: Any) -> str:
        return self.post(f"sessions/{session}/runs/", input=text, **options)["id"]

    def run(self, run_id: str) -> Data:
        return self.get(f"runs/{run_id}/")

    def session(self, session: str) -> Data:
        return self.get(f"sessions/{session}/")

    def messages(self, session: str) -> list[Data]:
        return self.get(f"sessions/{session}/history/")["messages"]

    def events(self, run_id: str) -> list[Data]:
        found: list[Data] = []
        while True:
            page = self.api.get(
                f"runs/{run_id}/events/",
                params={"after": found[-1]["seq"] if found else 0, "limit": 1000},
                headers={"Accept": "application/json"},
            )
            found += page.raise_for_status().json()["events"]
            if page.json()["done"] or not page.json()["events"]:
                return found

    def ended(self, run_id: str) -> Data:
        """The run, once it has ended."""
        over = ("completed", "failed", "cancelled", "interrupted")
        return until(lambda: (run := self.run(run_id))["status"] in over and run, f"the end of run {run_id}")
