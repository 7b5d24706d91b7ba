"""Followers are told: the bus between processes, the feeds of one process, the order of a stream.

Imported by the log and by everything above it.
"""
