"""The engine of this process: one object, set while the process serves."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runs.worker.engine import Engine

# None in a process that does not serve, such as a command, and before it serves and afterwards.
engine: "Engine | None" = None
