from django.db import migrations, models


def copy_agents(apps, schema_editor):
    Session = apps.get_model("runs", "Session")
    Run = apps.get_model("runs", "Run")
    agents = Session.objects.filter(pk=models.OuterRef("session")).values("agent")
    Run.objects.update(agent=models.Subquery(agents))


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0003_operators"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="compacted_to",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="agent",
            field=models.CharField(default="", editable=False, max_length=100),
            preserve_default=False,
        ),
        migrations.RunPython(copy_agents, migrations.RunPython.noop, elidable=True),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", False)),
                fields=["finished_at", "agent", "status", "input_tokens", "output_tokens"],
                name="run_figures",
            ),
        ),
    ]
