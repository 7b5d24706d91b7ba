"""The WebSocket edge.

Imported by the project's ASGI application.
"""
