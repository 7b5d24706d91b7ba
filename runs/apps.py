from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class RunsConfig(AppConfig):
    name = "runs"
    verbose_name = "Engine"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from runs import checks  # noqa: F401  registers them

        post_migrate.connect(_create_checkpoint_tables, sender=self)


def _create_checkpoint_tables(using: str, **_: Any) -> None:
    if connections[using].vendor == "postgresql":  # SQLite's are made when their file is opened
        from runs.memory.checkpoints.postgres import create_tables

        create_tables(using=using)
