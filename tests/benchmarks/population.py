"""``python -m tests.benchmarks.population [--runs N] [--events M]``: the admin in front of a grown database.

Fills an empty database with N runs and M events (1,000,000 and 50,000,000 unless given) over a year, of many
owners and several agents, with all outcomes; then opens every page of the admin, with every filter and in
every order, and prints a table: time, queries, size and memory of each. The database is that of DATABASE_URL,
or SQLite in DATA_DIR, which has to be given: this is nothing to do to data that somebody needs. What was
filled by this program before is measured again.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import django

DAYS = 365
BENCHMARK = "benchmark"  # the name of who looks at the pages; it marks a database that was filled
OWNERS = 200
BUSY = 10  # every so many sessions are the first owner's
AGENTS = ("assistant", "research", "support")
RETIRED = ("retired", 20)  # an agent of old, and its sessions
EVENTS_AT_A_TIME = 1_000_000
RUNS_PER_SESSION = 10
# Of a thousand ended runs.
FAILED, CANCELLED, INTERRUPTED = 40, 60, 10
# Of these, which are the latest ones, each in a session of its own.
RUNNING, WAITING, QUEUED = 60, 30, 10


def populate(runs: int, events: int, *, now: datetime) -> None:
    """Fill the database; ``runs`` is at least 1,000."""
    from django.contrib.auth import get_user_model
    from django.db import connection, transaction

    from runs.models import Worker

    users = get_user_model().objects
    users.create_superuser(BENCHMARK)
    first = users.create_user("owner0").pk
    users.bulk_create(get_user_model()(username=f"owner{number}") for number in range(1, OWNERS))
    for number in range(4):
        Worker.objects.create(
            host=f"host{number}", boot="boot", pid=1000 + number, pid_started="1", version="test"
        )
    filler = _Filler(connection, runs, events, now, first)
    start = time.monotonic()
    for name, share, statements in filler.steps():
        begun = time.monotonic()
        with transaction.atomic(), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        ended = time.monotonic()
        say(f"{share:4.0%}  {ended - start:5.0f} s  {name} in {ended - begun:.0f} s")
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE population_sessions")
        cursor.execute("DROP TABLE population_workers")
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE")  # which it does by itself; SQLite plans without statistics


class _Filler:
    """The statements; what is random in them is arithmetic, so that each population is the same."""

    def __init__(self, connection: Any, runs: int, events: int, now: datetime, first_owner: int) -> None:
        self.is_sqlite = connection.vendor == "sqlite"
        self.runs = runs
        self.sessions = max(runs // RUNS_PER_SESSION, 1)
        self.per_run = max(events // runs, 4)
        self.now = int(now.timestamp())
        self.first_owner = first_owner
        self.uuid = "lower(hex(randomblob(16)))" if self.is_sqlite else "gen_random_uuid()"

    def steps(self) -> Iterator[Any]:
        """Names of the steps, how much of all is there after each, and its statements, one transaction."""
        rows = self.sessions + self.runs * 2 + self.runs * self.per_run
        yield "sessions", self.sessions / rows, self._sessions()
        done = self.sessions + self.runs
        yield "runs", done / rows, self._runs()
        parts = max(self.runs * self.per_run // EVENTS_AT_A_TIME, 1)
        for part in range(parts):
            done += self.runs * self.per_run // parts
            yield f"events, {part + 1} of {parts} parts", done / rows, [self._events(part, parts)]
        yield "tool calls, cancellations, audit", 1, [self._calls(), self._cancellations(), self._audit()]

    def _series(self, name: str, count: int) -> str:
        if not self.is_sqlite:
            return f"(SELECT {name} FROM generate_series(0, {count - 1}) AS {name}) AS {name}s"
        return (
            f"(WITH RECURSIVE counted({name}) AS (SELECT 0 UNION ALL SELECT {name} + 1 FROM counted"
            f" WHERE {name} < {count - 1}) SELECT {name} FROM counted) AS {name}s"
        )

    def _at(self, seconds: str) -> str:
        return f"datetime({seconds}, 'unixepoch')" if self.is_sqlite else f"to_timestamp({seconds})"

    def _insert(self, table: str, columns: dict[str, str], source: str) -> str:
        return (
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(columns.values())} FROM {source}"
        )

    def _one_of(self, number: str, choices: tuple[str, ...]) -> str:
        cases = " ".join(f"WHEN {place} THEN '{choice}'" for place, choice in enumerate(choices))
        return f"CASE ({number}) % {len(choices)} {cases} END"

    def _sessions(self) -> Iterator[Any]:
        name, number = RETIRED
        agent = f"CASE WHEN n < {number} THEN '{name}' ELSE {self._one_of('n * 7 / 3', AGENTS)} END"
        at = self._at(f"{self.now} - n % {DAYS * 86_400}")
        order = "ROW_NUMBER() OVER (ORDER BY id) - 1"
        yield self._insert(
            "runs_session",
            {
                "id": self.uuid,
                "owner_id": f"{self.first_owner} + CASE WHEN n % {BUSY} = 0 THEN 0 ELSE n % {OWNERS} END",
                "agent": agent,
                "title": "'Conversation about matter ' || n",
                "title_source": "'words'",
                "origin": "'chat'",
                "created_at": at,
                "updated_at": at,
                "cancellation_revision": "0",
                "last_position": str(RUNS_PER_SESSION),
                "last_line": str(RUNS_PER_SESSION),
                "history_in_log": "1" if self.is_sqlite else "true",
            },
            self._series("n", self.sessions),
        )
        yield "CREATE TABLE population_sessions (number integer PRIMARY KEY, id char(36), agent varchar(100))"
        text = "id" if self.is_sqlite else "id::text"
        yield (f"INSERT INTO population_sessions SELECT {order}, {text}, agent FROM runs_session")
        yield "CREATE TABLE population_workers (number integer PRIMARY KEY, id char(36))"
        yield f"INSERT INTO population_workers SELECT {order}, {text} FROM runs_worker"

    def _runs(self) -> Iterator[Any]:
        # The later a run, the denser: a service that grows. Runs of a session follow each other.
        share = f"(n * 1.0 / {self.runs})"
        begin = f"CAST({self.now - DAYS * 86_400} + {DAYS * 86_400} * {share} * (2 - {share}) AS bigint)"
        active = f"n >= {self.runs - RUNNING - WAITING - QUEUED}"
        left = f"{self.runs} - n"
        dice = "n % 1000 * 7919 % 1000"
        status = (
            f"CASE WHEN {left} <= {QUEUED} THEN 'queued' WHEN {left} <= {QUEUED + WAITING} THEN 'waiting'"
            f" WHEN {active} THEN 'running' WHEN {dice} < {FAILED} THEN 'failed'"
            f" WHEN {dice} < {FAILED + CANCELLED} THEN 'cancelled'"
            f" WHEN {dice} < {FAILED + CANCELLED + INTERRUPTED} THEN 'interrupted' ELSE 'completed' END"
        )
        session = "s.id" if self.is_sqlite else "s.id::uuid"
        worker = "w.id" if self.is_sqlite else "w.id::uuid"
        place = f"n / {self.sessions} + 1"
        true, false = ("1", "0") if self.is_sqlite else ("true", "false")
        yield self._insert(
            "runs_run",
            {
                "id": self.uuid,
                "session_id": session,
                "agent": "s.agent",
                "line": place,
                "position": f"CASE WHEN {left} > {QUEUED} THEN {place} END",
                "status": status,
                "on_disconnect": "'continue'",
                "stream_modes": "'[]'",
                "input": "'Please look into matter ' || n || ', and tell me what you find.'",
                "message_id": "'m' || n",
                "requested_by_id": f"{self.first_owner} + n % {OWNERS}",
                "request_digest": "''",
                "error_code": f"CASE WHEN NOT ({active}) AND {dice} < {FAILED} THEN 'provider' END",
                "error_message": "''",
                "worker_id": f"CASE WHEN {left} > {QUEUED} THEN {worker} END",
                "claim": "1",
                "batches": "1",
                "automatic_resumes": "0",
                "repaired": f"CASE WHEN {active} THEN {false} ELSE {true} END",
                "last_seq": str(self.per_run),
                "created_at": self._at(begin),
                "started_at": self._at(begin),
                "finished_at": f"CASE WHEN NOT ({active}) THEN {self._at(f'{begin} + 5')} END",
                "stragglers": "0",
                "last_event_at": self._at(f"CASE WHEN {active} THEN {self.now} ELSE {begin} + 5 END"),
                "message_count": "2",
                "llm_calls": "1",
                "tool_calls": "n % 2",
                "input_tokens": "100 + n % 900",
                "output_tokens": "10 + n % 300",
                "tokens_estimated": false,
                "open_input_tokens": "0",
                "open_output_tokens": "0",
                "first_token_ms": "300",
                "duration_ms": "5000",
            },
            f"{self._series('n', self.runs)} JOIN population_sessions s ON s.number = n % {self.sessions}"
            " JOIN population_workers w ON w.number = n % 4",
        )

    def _events(self, part: int, parts: int) -> str:
        """A part of the events, in the order of their index, which makes the loading fast."""
        last = self.per_run
        kind = (
            f"CASE seq WHEN 0 THEN 'run.queued' WHEN 1 THEN 'run.started' WHEN {last - 2} THEN"
            f" 'message.completed' WHEN {last - 1} THEN 'run.' || r.status ELSE 'message.delta' END"
        )
        data = """'{"message":"a' || seq || '","text":"some words of an answer"}'"""
        first, behind = (f"'{number * 2**128 // parts:032x}'" for number in (part, part + 1))
        kind_of_id = "" if self.is_sqlite else "::uuid"
        upper = "" if part == parts - 1 else f" AND r.id < {behind}{kind_of_id}"
        return self._insert(
            "runs_runevent",
            {
                "run_id": "r.id",
                "seq": "seq + 1",
                "type": kind,
                "data": data if self.is_sqlite else f"({data})::jsonb",
                "at": "r.created_at",
            },
            f"(SELECT id, status, created_at FROM runs_run r WHERE r.id >= {first}{kind_of_id}{upper}"
            " ORDER BY id) AS r"
            f" CROSS JOIN {self._series('seq', self.per_run)}",
        )

    def _calls(self) -> str:
        return self._insert(
            "runs_toolcall",
            {
                "run_id": "id",
                "call_id": "'call'",
                "message_id": "'a'",
                "name": "'look_up'",
                "args": "'{}'",
                "status": "CASE WHEN status = 'cancelled' THEN 'cancelled' ELSE 'completed' END",
                "effect": "CASE WHEN status = 'cancelled' THEN 'unknown' ELSE 'done' END",
                "result": "'found'",
                "started_at": "started_at",
                "duration_ms": "1000",
                "start_is_logged": "1" if self.is_sqlite else "true",
            },
            "runs_run WHERE tool_calls > 0 AND finished_at IS NOT NULL",
        )

    def _cancellations(self) -> str:
        seconds = "output_tokens % 7"
        settled = (
            f"datetime(finished_at, '+' || ({seconds}) || ' seconds')"
            if self.is_sqlite
            else f"finished_at + make_interval(secs => {seconds})"
        )
        return self._insert(
            "runs_cancellation",
            {
                "id": self.uuid,
                "session_id": "session_id",
                "run_id": "id",
                "source": "'user'",
                "reason": "''",
                "requested_by_id": "requested_by_id",
                "accepted_at": "finished_at",
                "settled_at": settled,
                "outcome": "'cancelled'",
                "escalated": "0" if self.is_sqlite else "false",
            },
            "runs_run WHERE status = 'cancelled'",
        )

    def _audit(self) -> str:
        return self._insert(
            "runs_auditentry",
            {
                "at": "finished_at",
                "actor": "'operator'",
                "action": "'reconcile'",
                "target": "'run ' || message_id",
                "reason": "'It was interrupted.'",
                "details": "'{}'",
            },
            "runs_run WHERE status = 'interrupted'",
        )


def say(line: str) -> None:
    """Tell people how far it is."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.population", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=50_000_000)
    asked = parser.parse_args()
    if not os.environ.get("DATA_DIR"):
        sys.exit("Set DATA_DIR to a folder that may be filled up.")
    os.environ.setdefault("SECRET_KEY", "only-for-a-benchmark-and-long-enough")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    django.setup()

    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.test.utils import setup_test_environment
    from django.utils import timezone

    from tests.benchmarks.admin_pages import measure, table

    call_command("migrate", verbosity=0)
    users = get_user_model().objects
    if not users.exists():
        populate(asked.runs, asked.events, now=timezone.now())
    elif not users.filter(username=BENCHMARK).exists():
        sys.exit("This database is not empty.")
    setup_test_environment()  # keeps the contexts of pages
    print(table(measure(users.get(username=BENCHMARK))))


if __name__ == "__main__":
    main()
