"""What the graph remembers: checkpoints, their fence and their repair.

Imported by the lifecycle and everything above it.
"""
