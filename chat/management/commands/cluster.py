"""Set up, for a first look, all that several processes take, and serve it on this machine only."""

import asyncio
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chat.cluster.cluster import HOST, Cluster
from chat.cluster.services import CannotStart
from chat.server import listener
from chat.server.lock_file import AlreadyRunning, exclusive


class Command(BaseCommand):
    help = (
        "Starts PostgreSQL, Redis, two web processes and two workers, makes a demo account, and serves on"
        " 127.0.0.1. What ends is started again; all of it ends with this process."
    )
    requires_system_checks = []  # its processes have other settings, which they check

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with exclusive(settings.DATA_DIR / "cluster.lock"), listener.bind(HOST, settings.PORT) as port:
                asyncio.run(Cluster(settings.DATA_DIR, self.introduce).run(port))
        except AlreadyRunning as error:
            raise CommandError(
                f"Process {error.process} already runs a cluster on {settings.DATA_DIR}. "
                "Stop it, or set another DATA_DIR."
            ) from None
        except (listener.CannotListen, CannotStart) as error:
            raise CommandError(str(error)) from None

    def introduce(self, lines: Mapping[str, str]) -> None:
        for name in ("Address", "User", "Password", "Token"):
            self.stdout.write(f"{name}: {lines[name]}")
        self.stdout.flush()
