"""The REST API under /api/, with its event streams (server-sent events).

The addresses import it. The pages and the other protocols may import what they share with it.
"""
