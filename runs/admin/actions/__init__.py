"""What operators do to runs, sessions and accounts: one at a time and in bulk.

Imported by the pages.
"""
