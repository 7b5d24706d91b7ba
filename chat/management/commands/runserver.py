"""Django's own server cannot serve turns; say what does."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Not for this project: see serve and quickstart."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        raise CommandError(
            "Start the server with `manage.py serve`, or with `manage.py quickstart` for a first look."
        )
