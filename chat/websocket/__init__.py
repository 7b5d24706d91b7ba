"""The WebSocket protocol: a session live, and a user's list of sessions live.

Only the project's ASGI application imports it.
"""
