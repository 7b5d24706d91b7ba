"""Filters, search and pages of long lists, and which runs need attention.

Imported by the pages and the base of the console.
"""
