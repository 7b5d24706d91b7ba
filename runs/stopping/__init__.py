"""What still works for a run, in tasks, threads and processes, and how it is ended.

Imported by ``runs.token``, by translation and by the worker.
"""
