"""Which tool calls came to a result although nobody waited for them any more."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from runs.stopping.cancel_token import current_call


class LateResults(BaseCallbackHandler):
    """Tells of each tool call that has a result, from whatever thread it comes in.

    A synchronous tool runs its callbacks in its own thread, so this one is heard after the end of the run
    as well. Where only the tool's inner function runs in a thread, its future tells
    (``Work.give_up``); for that the context names the call.
    """

    run_inline = True
    ignore_llm = True  # it would be called for each token

    def __init__(self, on_result: Callable[[str], None]) -> None:
        self._on_result = on_result
        self._calls: dict[UUID, str] = {}

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **kwargs: Any
    ) -> None:
        call_id = kwargs.get("tool_call_id")
        if call_id is not None:
            self._calls[run_id] = call_id
            current_call.set(call_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        if (call_id := self._calls.pop(run_id, None)) is not None:
            self._on_result(call_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._calls.pop(run_id, None)
