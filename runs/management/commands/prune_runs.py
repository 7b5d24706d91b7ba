"""Retention: compact the logs of old runs, and delete sessions that nobody uses any more."""

import asyncio
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections
from django.utils import timezone

from runs.log import compaction
from runs.recovery import deletion

# Events: what SQLite deletes in some 50 ms, during which nobody else can write.
BATCH = 5_000


class Command(BaseCommand):
    help = (
        "Makes the logs of runs compact that ended a while ago: the pieces of a message go, the whole message"
        " stays, and so do its history and its figures. With --delete-after it also deletes sessions in which"
        " nothing is active and nothing has changed for so long, with all that belongs to them; audit entries"
        " and daily totals stay. It may run beside servers and workers, also twice at once, and may be"
        " broken off: what is left is done the next time. SQLite uses the room that becomes free again, but"
        " its file does not shrink."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--compact-after",
            type=_days,
            default=_days("7"),
            metavar="DAYS",
            help="since a run's end, until its log is made compact (7)",
        )
        parser.add_argument(
            "--delete-after",
            type=_days,
            metavar="DAYS",
            help="since a session's last change, until it is deleted (never, unless given)",
        )
        parser.add_argument(
            "--batch",
            type=_count,
            default=BATCH,
            metavar="EVENTS",
            help=f"that one transaction goes through ({BATCH})",
        )
        parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")

    def handle(
        self,
        *args: Any,
        compact_after: timedelta,
        delete_after: timedelta | None,
        batch: int,
        dry_run: bool,
        **options: Any,
    ) -> str:
        now = timezone.now()
        sessions = 0
        if delete_after is not None:  # first, since what goes need not be made compact
            sessions = _count_unused(now - delete_after) if dry_run else _delete_unused(now - delete_after)
        runs = events = 0
        for done in compaction.compact(now - compact_after, batch, dry_run=dry_run):
            runs += done.runs
            events += done.events
        would = "would have been " if dry_run else ""
        return (
            f"Sessions {would}deleted: {sessions}. Logs {would}made compact: {runs},"
            f" of which {events} events {'would be' if dry_run else 'are'} gone."
        )


def _count_unused(before: datetime) -> int:
    return deletion.unused(before).count()


def _delete_unused(before: datetime) -> int:
    connections.close_all()  # this thread becomes the event loop's and must not hold one
    return asyncio.run(deletion.delete_unused(before))


def _days(text: str) -> timedelta:
    try:
        days = float(text)
        if not 0 <= days <= 36_500:
            raise ValueError
    except ValueError:
        raise ArgumentTypeError(f"{text} is no number of days.") from None
    return timedelta(days=days)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text} is no number of events.")
    return int(text)
