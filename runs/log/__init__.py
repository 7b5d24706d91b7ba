"""Events become durable: recording, group commit, tool calls, folding, compaction.

Imported by memory, the lifecycle and everything above them.
"""
