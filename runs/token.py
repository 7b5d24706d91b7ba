"""What a tool that can block asks for: how a cancel reaches code in threads, callbacks and child processes.

``token = cancel_token()``, then ``token.cancelled``, ``token.wait(seconds)``, ``token.on_cancel(callback)``,
``token.start_process(args)``. The way to write it for agents; the work is done in ``runs.stopping``.
"""

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token

__all__ = ["CancelToken", "RunCancelled", "cancel_token"]
