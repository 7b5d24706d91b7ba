"""The REST and server-sent-events edge, under /api/.

Imported by the addresses, and by the other edges for what they share with it.
"""
