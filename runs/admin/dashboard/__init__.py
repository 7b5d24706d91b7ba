"""The dashboard: charts of what the engine did, and what needs attention.

Imported by the pages and by the project's addresses.
"""
