"""The dashboard: charts of what the engine did, and what needs attention.

Imported by the lists, the template tags and the project's addresses.
"""
