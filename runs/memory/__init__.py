"""The state that graphs keep between turns: checkpoints, their fence and their repair.

Imported by the lifecycle and everything above it.
"""
