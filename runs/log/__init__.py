"""The durable log of events: writing, group commit, tool calls, transcripts, compaction.

Imported by memory, the lifecycle and everything above them.
"""
