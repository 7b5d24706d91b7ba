"""Several processes on one machine, for development: PostgreSQL, Redis, web processes and workers.

Only the command ``cluster`` imports it.
"""
