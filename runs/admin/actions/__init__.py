"""The commands to runs, and the deletion of sessions and accounts: one at a time and in bulk.

Imported by the pages.
"""
