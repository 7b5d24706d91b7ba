"""Cancel a run from the command line."""

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from runs.errors import NotFound
from runs.foundation.limits import REASON_LIMIT
from runs.lifecycle import cancel_requests
from runs.models import Run
from runs.states import CancelOutcome, CancelSource


class Command(BaseCommand):
    help = (
        "Cancels a run. One that is queued or waiting, or whose worker is gone, ends at once. Otherwise the"
        " cancel is recorded, and the worker that executes the run finds it with its next heartbeat."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=_uuid, metavar="ID", help="the run's id")
        parser.add_argument("--reason", default="", help="why, for those who look at the run later")

    def handle(self, *args: Any, run: UUID, reason: str, **options: Any) -> str:
        try:
            cancellation = cancel_requests.request_cancel(
                run, source=CancelSource.OPERATOR, reason=reason[:REASON_LIMIT], requested_by=None
            )
        except NotFound:
            raise CommandError(f"There is no run with the id {run}.") from None
        if cancellation is None:
            status = Run.objects.values_list("status", flat=True).get(id=run)
            return f"Nothing to cancel: the run had already ended as {status}."
        if cancellation.settled_at is None:
            return "Cancel accepted: the run's worker is stopping it."
        if cancellation.outcome == CancelOutcome.RECONCILED:
            return "The run is cancelled; it had no worker any more that could have stopped it."
        return "The run is cancelled."


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"{text} is no id of a run.") from None
