"""The only place that changes the status of a run, and the predicates that decide about it.

Imported by translation, recovery, the worker and everything above them.
"""
