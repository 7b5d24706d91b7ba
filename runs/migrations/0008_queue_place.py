"""Renames two fields in Django alone: their columns keep their names, so no SQL runs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0007_leftover"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveConstraint("run", "one_run_per_line"),
                migrations.RemoveIndex("run", "run_queue"),
                migrations.RenameField("run", "line", "queue_place"),
                migrations.AlterField("run", "queue_place", models.BigIntegerField(db_column="line")),
                migrations.RenameField("session", "last_line", "last_queue_place"),
                migrations.AlterField(
                    "session",
                    "last_queue_place",
                    models.PositiveIntegerField(db_column="last_line", default=0),
                ),
                migrations.AddIndex(
                    "run", models.Index(fields=["session", "status", "queue_place"], name="run_queue")
                ),
                migrations.AddConstraint(
                    "run",
                    models.UniqueConstraint(fields=("session", "queue_place"), name="one_run_per_line"),
                ),
            ],
        ),
    ]
