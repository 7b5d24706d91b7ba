"""The secret key that a server keeps beside its data."""

import secrets
from pathlib import Path

from chat.server.private_file import write_private

# Set by manage.py for quickstart, before the settings are read; every other command needs a key that exists.
may_be_made = False


def read_or_make(data_dir: Path) -> str:
    """The key in ``data_dir``. If there is none, it is made when that is allowed, else empty."""
    path = data_dir / "secret_key"
    key = path.read_text().strip() if path.exists() else ""
    if not key and may_be_made:
        key = secrets.token_urlsafe(50)
        write_private(path, key)
    return key
