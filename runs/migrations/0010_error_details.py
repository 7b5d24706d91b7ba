from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0009_tool_call_starts"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="error_details",
            field=models.TextField(null=True),
        ),
    ]
