"""Tests of chat.server."""
