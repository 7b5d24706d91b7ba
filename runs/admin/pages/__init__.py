"""One page for each kind of record.

Imported when the console is registered.
"""
