"""How long lists are filtered, searched and paged.

Imported by the pages.
"""
