"""The operator's console: what runs, what hangs and why, and what can be done about it.

Its pages read the models; whatever changes something calls ``runs.operators``, as the API does.
"""

from runs.admin import accounts, audit, cancellations, runs, sessions, workers

__all__ = ["accounts", "audit", "cancellations", "runs", "sessions", "workers"]
