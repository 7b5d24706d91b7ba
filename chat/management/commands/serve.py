"""Serve the pages, the sockets, the API and, unless workers do it, the turns."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from chat.server import listener, serving


class Command(BaseCommand):
    help = "Serves until it gets SIGTERM or SIGINT, and then leaves in good order."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
        parser.add_argument(
            "--port", type=int, default=settings.PORT, help="port to listen on (PORT; 0: a free one)"
        )

    def handle(self, *args: Any, host: str, port: int, **options: Any) -> None:
        def introduce(port: int) -> None:
            self.stdout.write(f"Address: {listener.address(host, port)}")
            self.stdout.flush()

        try:
            serving.serve(host, port, prepare=serving.require_migrated, on_listening=introduce)
        except serving.CannotServe as error:
            raise CommandError(str(error)) from None
