"""What a graph streams becomes events and numbers of a run.

Imported by the worker.
"""
