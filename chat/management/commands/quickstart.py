"""Set everything up for a first look, and serve it on this machine only."""

from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from chat.server import demo_account, listener, serving

HOST = "127.0.0.1"


class Command(BaseCommand):
    help = "Brings the database up to date, makes a demo account, and serves on 127.0.0.1."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            serving.serve(HOST, settings.PORT, prepare=self.prepare, on_listening=self.introduce)
        except serving.CannotServe as error:
            raise CommandError(str(error)) from None

    def prepare(self) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        self.credentials = demo_account.prepare(settings.DATA_DIR)

    def introduce(self, port: int) -> None:
        self.stdout.write(f"Address: {listener.address(HOST, port)}")
        self.stdout.write(f"User: {demo_account.USERNAME}")
        self.stdout.write(f"Password: {self.credentials.password}")
        self.stdout.write(f"Token: {self.credentials.token}")
        self.stdout.flush()
