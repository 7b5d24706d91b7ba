"""The history of a session, as its owner and as operators read it.

Imported by the operations, the operators and the console.
"""
