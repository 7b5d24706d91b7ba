"""The cancel token, as agents import it: how a cancel reaches code in threads and child processes.

A tool that can block calls ``token = cancel_token()``. Then it uses ``token.cancelled``,
``token.wait(seconds)``, ``token.on_cancel(callback)`` or ``token.start_process(args)``.
"""

from runs.stopping.cancel_token import CancelToken, RunCancelled, cancel_token

__all__ = ["CancelToken", "RunCancelled", "cancel_token"]
