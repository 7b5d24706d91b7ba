"""Execute turns in a process of its own."""

import asyncio
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from runs.foundation import database
from runs.foundation.host import this_process
from runs.foundation.shutdown import FAILED, Shutdown
from runs.lifecycle import dispatch
from runs.worker.supervisor import Supervisor


class Command(BaseCommand):
    help = (
        "Executes turns that web processes admit, many at a time, until it gets SIGTERM or SIGINT, and then"
        " leaves in good order: what may go on elsewhere is handed over to another worker."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        if not dispatch.is_shared():
            raise CommandError(
                "DISPATCH is inprocess: the web process executes the turns, and a worker would find none. "
                "Set DISPATCH=procrastinate for all processes."
            )
        if not database.is_migrated():
            raise CommandError("The database is not up to date. Run `manage.py migrate` first.")
        connections.close_all()  # this thread becomes the event loop's and must not hold one
        with asyncio.Runner() as runner:
            shutdown = Shutdown(runner.get_loop(), settings.RUNS_DRAIN_TIMEOUT)
            shutdown.handle_signals()
            try:
                is_broken = runner.run(self.work(shutdown))
            except (SystemExit, KeyboardInterrupt) as error:  # a callback has ended the loop; nothing goes on
                shutdown.exit_at_once(error)
        if is_broken:
            raise CommandError("The engine broke and the worker has left; the log says why.")

    async def work(self, shutdown: Shutdown) -> bool:
        """Work until told to leave, or until the engine breaks; whether it was the latter."""
        try:
            supervisor = await Supervisor.start()
            self.stdout.write(f"Worker: {this_process()}")
            self.stdout.flush()
            is_broken = await shutdown.wait(supervisor.broken)
            if is_broken:
                shutdown.exit_code = FAILED
        except BaseException:
            shutdown.exit_code = FAILED
            raise
        finally:
            shutdown.start_deadline()  # what is stuck may also hold up the end of the interpreter
        await supervisor.leave(shutdown.seconds_left)
        return is_broken
