"""The process that executes runs: from the claim to the ending of each.

Imported by commands and by those who start servers.
"""
