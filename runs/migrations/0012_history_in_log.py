import django.db.models.deletion
from django.db import migrations, models

import runs.states


class Migration(migrations.Migration):
    dependencies = [("runs", "0011_run_stragglers")]

    operations = [
        migrations.CreateModel(
            name="Amendment",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        serialize=False,
                        to="runs.run",
                    ),
                ),
                ("changed", models.JSONField(default=dict)),
                ("added", models.JSONField(default=list)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.RemoveIndex(model_name="runevent", name="event_completed_message"),
        migrations.AddField(
            model_name="runevent",
            name="message_key",
            field=models.CharField(editable=False, max_length=200, null=True),
        ),
        migrations.AlterField(
            model_name="runevent",
            name="type",
            field=models.CharField(choices=runs.states.EventType.choices, max_length=20),
        ),
        migrations.AddIndex(
            model_name="runevent",
            index=models.Index(
                condition=models.Q(("type", "message.delta"), _negated=True),
                fields=["run", "seq"],
                name="event_but_delta",
            ),
        ),
        migrations.AddIndex(
            model_name="runevent",
            index=models.Index(
                condition=models.Q(("message_key__isnull", False)),
                fields=["message_key"],
                name="event_of_message",
            ),
        ),
        # What is there now was written by an older version, what comes is not.
        migrations.AddField(
            model_name="session", name="history_in_log", field=models.BooleanField(default=False)
        ),
        migrations.AlterField(
            model_name="session", name="history_in_log", field=models.BooleanField(default=True)
        ),
    ]
