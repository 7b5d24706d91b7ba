"""The secret key that a server keeps beside its data, readable by its own account only."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

# Set by manage.py for quickstart, before the settings are read; every other command needs a key that exists.
may_be_made = False


def kept(data_dir: Path) -> str:
    """The key in ``data_dir``, made now if that is allowed; empty when there is none."""
    path = data_dir / "secret_key"
    with suppress(FileNotFoundError):
        if key := path.read_text().strip():
            return key
    if not may_be_made:
        return ""
    key = secrets.token_urlsafe(50)
    write_private(path, key)
    return key


def write_private(path: Path, text: str) -> None:
    """Put ``text`` into a file of mode 0600. The file is there wholly or not at all, also after a crash."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
