"""The pages that people use.

Imported by the addresses.
"""
