"""Followers get what changes: the bus between processes, the mailboxes of one, the order of a stream.

Imported by the log and by everything above it.
"""
