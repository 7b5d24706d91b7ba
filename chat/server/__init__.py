"""The server process: daphne with a start, a shutdown and limits.

Only management commands, the cluster and the project import it.
"""
