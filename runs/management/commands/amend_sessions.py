"""Write down what only the checkpoints of older versions knew of their turns."""

import asyncio
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections

from runs.foundation.database import in_thread
from runs.memory import amendments
from runs.memory.checkpoints import process_checkpoints
from runs.models import Session

# Sessions between two lines of progress.
_PROGRESS = 100


class Command(BaseCommand):
    help = (
        "Amends the sessions that an older version wrote: from then on their history is read from the log"
        " alone. A session is amended anyhow before it is read or goes on, so this only does it in advance."
        " It may run beside servers and workers, and may be broken off: what is left is done the next time."
    )

    def handle(self, *args: Any, **options: Any) -> str:
        connections.close_all()  # this thread becomes the event loop's and must not hold one
        return asyncio.run(self._amend())

    async def _amend(self) -> str:
        left = await in_thread(lambda: list(Session.objects.filter(history_in_log=False)))
        failed = 0
        async with process_checkpoints():
            for number, session in enumerate(left, start=1):
                failed += not await amendments.complete(session)
                if number % _PROGRESS == 0:
                    self.stderr.write(f"{number} of {len(left)}")
        return f"Sessions amended: {len(left) - failed}. Left as they are: {failed}."
