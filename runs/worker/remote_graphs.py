"""Let graphs have nodes that are graphs elsewhere.

LangGraph hands the stream modes of the graph around it on to a ``RemoteGraph``. A server that does not know
one of them refuses the call, and what it streams comes as plain data, which is no chunk of our stream. So a
remote graph gets none of our modes. What it says stands in the state when its step ends, and is told then.
"""

import sys
from typing import Any


def adapt() -> None:
    """Adapt LangGraph's class, if something has loaded it. A second call does nothing."""
    module: Any = sys.modules.get("langgraph.pregel.remote")
    if module is None or getattr(module.RemoteGraph, "is_adapted", False):
        return
    original = module.RemoteGraph._get_stream_modes

    def own_modes(self: Any, stream_mode: Any, config: Any, default: Any = "updates") -> Any:
        return original(self, stream_mode, None, default)

    module.RemoteGraph._get_stream_modes = own_modes
    module.RemoteGraph.is_adapted = True
