"""What every room stands on: values, statements, threads, this process. Knows nothing of runs.

Every room may import it; it imports none.
"""
