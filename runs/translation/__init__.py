"""Translation of what a graph streams into the events and the numbers of a run.

Imported by the worker.
"""
