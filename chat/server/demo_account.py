"""The demo account that ``quickstart`` creates."""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from django.contrib.auth import get_user_model
from django.db import connection

from chat.access import tokens
from chat.server.private_file import write_private

USERNAME = "demo"


@dataclass(slots=True)
class Credentials:
    """What the demo account logs in with; empty where it was never made."""

    password: str = ""
    token: str = ""


def prepare(data_dir: Path) -> Credentials:
    """Credentials that work: those kept in ``data_dir``, and the account and token behind them.

    They are kept for each kind of database, since a token is good only where it was made.

    The account is an operator. Whatever of it somebody has deleted or changed is put right again.
    """
    kind = "" if connection.vendor == "sqlite" else f".{connection.vendor}"
    path = data_dir / f"demo_account{kind}.json"
    kept = Credentials(**json.loads(path.read_text())) if path.exists() else Credentials()
    credentials = Credentials(kept.password or secrets.token_urlsafe(12), kept.token)

    user, _ = get_user_model().objects.get_or_create(username=USERNAME)
    user.is_active = user.is_staff = user.is_superuser = True
    if not user.check_password(credentials.password):
        user.set_password(credentials.password)
    user.save()

    row = tokens.recognise(credentials.token)
    if row is None or row.user != user:
        credentials.token = tokens.create_token(user, "quickstart")
    if credentials != kept:
        write_private(path, json.dumps(asdict(credentials)))
    return credentials
