import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# Foreign keys with which another index or constraint begins.
COVERED = (
    ("Session", "owner"),
    ("Run", "session"),
    ("Run", "worker"),
    ("RunEvent", "run"),
    ("ToolCall", "run"),
)


def drop_covered(apps, schema_editor):
    """To alter the fields would do it as well, but on SQLite by copying tables of any size."""
    for name, field_name in COVERED:
        model = apps.get_model("runs", name)
        column = model._meta.get_field(field_name).column
        kept = {index.name for index in model._meta.indexes}
        with schema_editor.connection.cursor() as cursor:
            found = schema_editor.connection.introspection.get_constraints(cursor, model._meta.db_table)
        for index, about in found.items():
            if about["index"] and not about["unique"] and about["columns"] == [column] and index not in kept:
                schema_editor.execute(f"DROP INDEX {schema_editor.quote_name(index)}")


def make_covered(apps, schema_editor):
    for name, field_name in COVERED:
        model = apps.get_model("runs", name)
        field = model._meta.get_field(field_name)
        schema_editor.execute(schema_editor._create_index_sql(model, fields=[field]))


def delete_permissions_of_seeds(apps, schema_editor):
    permissions = apps.get_model("auth", "Permission").objects
    permissions.filter(content_type__app_label="runs", content_type__model="seed").delete()


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("runs", "0004_figures_and_retention"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(name="seed", options={"default_permissions": ()}),
        migrations.RunPython(delete_permissions_of_seeds, migrations.RunPython.noop, elidable=True),
        migrations.RemoveIndex(model_name="session", name="session_agent"),
        migrations.RemoveIndex(model_name="toolcall", name="call_of_unknown_effect"),
        migrations.AddIndex(
            model_name="toolcall",
            index=models.Index(
                condition=models.Q(("effect", "unknown")),
                fields=["-started_at", "run"],
                name="call_of_unknown_effect",
            ),
        ),
        migrations.RemoveIndex(model_name="run", name="run_of_worker"),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("status", "running")), fields=["worker", "status"], name="run_of_worker"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(fields=["worker", "-created_at", "-id"], name="run_newest_by_worker"),
        ),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(drop_covered, make_covered)],
            state_operations=[
                migrations.AlterField(
                    model_name="session",
                    name="owner",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="agent_sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                migrations.AlterField(
                    model_name="run",
                    name="session",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="runs.session",
                    ),
                ),
                migrations.AlterField(
                    model_name="run",
                    name="worker",
                    field=models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="runs",
                        to="runs.worker",
                    ),
                ),
                migrations.AlterField(
                    model_name="runevent",
                    name="run",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="runs.run",
                    ),
                ),
                migrations.AlterField(
                    model_name="toolcall",
                    name="run",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="calls",
                        to="runs.run",
                    ),
                ),
            ],
        ),
    ]
