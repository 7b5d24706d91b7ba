"""Recovery after crashes and lost signals, and deletion: everything is brought into order again.

Imported by the worker, the operations, the operators and the commands.
"""
