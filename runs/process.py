"""The engine of this process, where everybody finds it: one object, set while it serves."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runs.worker.engine import Engine

# None in a process that does not serve, such as a command, and before and after it serves.
current: "Engine | None" = None
