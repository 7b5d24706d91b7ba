"""The state of the whole system in pictures.

Imported by the pages and by the project's addresses.
"""
