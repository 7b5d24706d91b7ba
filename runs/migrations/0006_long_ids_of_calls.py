from django.db import migrations, models
from django.db.models import Q
from django.db.models.functions import Length

from runs.foundation.limits import ID_LIMIT
from runs.foundation.values import lookup_key


def give_keys(apps, schema_editor):
    """SQLite has let ids of any length in; the other databases have refused them."""
    if schema_editor.connection.vendor != "sqlite":
        return
    calls = apps.get_model("runs", "ToolCall").objects.annotate(
        length=Length("call_id"), length_of_message=Length("message_id")
    )
    for call in calls.filter(Q(length__gt=ID_LIMIT) | Q(length_of_message__gt=ID_LIMIT)):
        if len(call.call_id) > ID_LIMIT:
            call.long_id = call.call_id
        call.call_id, call.message_id = lookup_key(call.call_id), lookup_key(call.message_id)
        call.save()


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0005_indexes_of_the_console"),
    ]

    operations = [
        migrations.AddField(
            model_name="toolcall",
            name="long_id",
            field=models.TextField(null=True),
        ),
        migrations.RunPython(give_keys, migrations.RunPython.noop, elidable=True),
    ]
