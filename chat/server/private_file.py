"""Write a secret into a file that only the server's own account can read."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Put ``text`` into a file of mode 0600. After a crash the file is complete or missing."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
